"""`make faults`: run the campaign, print its table, and fail where something broke."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults import disks, folders, inputs, kills, server
from faults.material import make, warm_up
from faults.results import Tally, table
from faults.running import Crew

PARTS = ("inputs", "kills", "disks", "server", "folders")
START, END = "<!-- made by python -m faults: start -->", "<!-- made by python -m faults: end -->"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def campaign(root: Path, options: argparse.Namespace) -> list[Tally]:
    """All that is asked for; tables grow while it runs."""
    crew = Crew(root / "cases", options.workers, options.patience)
    material = make(root / "material", crew)
    tallies: list[Tally] = []

    def done(tally: Tally) -> None:
        tallies.append(tally)
        for line in tally.examples[:20]:
            print(line, flush=True)
        print(
            f"{time.strftime('%H:%M:%S')} {tally.name}: {tally.cases} cases, {sum(tally.faults.values())} faults",
            flush=True,
        )

    if "inputs" in options.only:
        for tally in inputs.campaign(material, crew, options.inputs, options.seed):
            done(tally)
    if "kills" in options.only:
        for tally in kills.campaign(material, crew, options.kills, options.kills, options.seed):
            done(tally)
    if "disks" in options.only:
        done(disks.full(material, crew, options.levels, options.seed))
        done(disks.read_only(material, crew))
        done(disks.twice(material, crew, options.rounds))
    if "server" in options.only:
        done(server.campaign(material, crew, options.hostile, options.honest, options.seed))
    if "folders" in options.only:
        done(folders.campaign(material, crew))
    return tallies


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=1600, help="bad inputs (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=50, help="of training, and of the others (default: %(default)s)")
    parser.add_argument("--levels", type=int, default=3, help="of full disks per command (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of two at once (default: %(default)s)")
    parser.add_argument("--hostile", type=int, default=10_000, help="requests (default: %(default)s)")
    parser.add_argument("--honest", type=int, default=1_000, help="requests (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="commands at once")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all time limits (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of the campaign")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    return parser.parse_args(words)


def write_page(text: str, words: str) -> None:
    """Between the two marks of the page."""
    if not PAGE.exists():
        raise SystemExit(f"faults: there is no {PAGE} to write to")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    if not after and not rest:
        raise SystemExit(f"faults: {PAGE} has no place for the table")
    PAGE.write_text(f"{before}{START}\n\n`{words}`\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    started = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    root = Path(tempfile.mkdtemp(prefix="dapl-faults-"))
    try:
        warm_up()
        tallies = campaign(root, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    text = table(tallies)
    print(f"\n{text}\n")
    for example in [line for tally in tallies for line in tally.examples][:200]:
        print(example)
    print(f"{sum(tally.cases for tally in tallies):,} cases in {(time.monotonic() - started) / 60:.1f} minutes")
    if options.write:
        write_page(text, " ".join(["python -m faults", *(sys.argv[1:] if words is None else words)]))
    return 1 if any(tally.faults for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
