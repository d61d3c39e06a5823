"""`make bench`: prints the table of ratios."""

from itertools import chain

from benchmarks import evaluation, explanations, report, startup, training
from benchmarks.timing import HEADER

print(HEADER)
for ratio in chain(training.ratios(), evaluation.ratios(), explanations.ratios(), report.ratios(), startup.ratios()):
    print(ratio.row(), flush=True)
