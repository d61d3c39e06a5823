"""`make bench`: prints the table of ratios and keeps it, for the page of results, as build/benchmarks.json."""

from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchmarks import evaluation, explanations, report, startup, training
from benchmarks.timing import show
from dapl.common.files import write_json
from dapl.runs.provenance import provenance

modules = (training, evaluation, explanations, report, startup)
ratios = [asdict(ratio) for ratio in show(chain.from_iterable(module.ratios() for module in modules))]
write_json(Path("build/benchmarks.json"), {**provenance([]), "command": "make bench", "ratios": ratios})
