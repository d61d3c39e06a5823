"""`make bench`: prints the table of ratios."""

from benchmarks import training
from benchmarks.timing import HEADER

print(HEADER)
for ratio in training.ratios():
    print(ratio.row(), flush=True)
