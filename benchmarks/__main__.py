"""`make bench`: prints the table of ratios and keeps it, for the page of results, as build/benchmarks.json."""

from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchmarks import evaluation, explanations, report, startup, training
from benchmarks.timing import HEADER
from dapl.common.files import write_json
from dapl.runs.provenance import provenance

print(HEADER)
ratios = []
for ratio in chain(training.ratios(), evaluation.ratios(), explanations.ratios(), report.ratios(), startup.ratios()):
    print(ratio.row(), flush=True)
    ratios.append(asdict(ratio))
write_json(Path("build/benchmarks.json"), {**provenance([]), "command": "make bench", "ratios": ratios})
