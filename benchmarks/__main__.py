"""`make bench`: prints the table of ratios and keeps it, for the page of results, as build/benchmarks.json.

python -m benchmarks                        # all of them
python -m benchmarks training startup       # these; the rows of others that were measured before stay in the file
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import evaluation, explanations, layouts, report, startup, training
from benchmarks.timing import show
from dapl.common.files import write_json
from dapl.runs.provenance import provenance

KEPT = Path("build/benchmarks.json")
MODULES = {"training": training, "evaluation": evaluation, "explanations": explanations}
MODULES |= {"report": report, "startup": startup, "layouts": layouts}


def main(names: list[str]) -> None:
    unknown = next((name for name in names if name not in MODULES), None)
    if unknown is not None:
        sys.exit(f"there is no benchmark {unknown}; give some of {', '.join(MODULES)}.")
    before = json.loads(KEPT.read_text(encoding="utf-8")) if names and KEPT.exists() else {}
    found = dict(before.get("of", {}))
    for name in names or MODULES:
        found[name] = [asdict(ratio) for ratio in show(MODULES[name].ratios())]
        ratios = [ratio for known in MODULES for ratio in found.get(known, [])]
        command = "make bench" if len(found) == len(MODULES) else f"python -m benchmarks {' '.join(found)}"
        write_json(KEPT, {**provenance([]), "command": command, "ratios": ratios, "of": found})


if __name__ == "__main__":
    main(sys.argv[1:])
