"""`make bench`: prints the table of ratios."""

from itertools import chain

from benchmarks import evaluation, training
from benchmarks.timing import HEADER

print(HEADER)
for ratio in chain(training.ratios(), evaluation.ratios()):
    print(ratio.row(), flush=True)
