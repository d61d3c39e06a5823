"""`make faults`: run the campaign, print its table, and fail where something broke."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from faults import disks, folders, inputs, kills, server
from faults.material import make, warm_up
from faults.results import Tally, table
from faults.running import Crew, workplace

PARTS = {
    "inputs": lambda made, crew, asked: inputs.campaign(made, crew, asked.inputs, asked.seed, asked.kinds),
    "kills": lambda made, crew, asked: kills.trainings(made, crew, asked.kills, asked.seed),
    "devices": lambda made, crew, asked: kills.trainings(made, crew, asked.device_kills, asked.seed, 2),
    "spawned": lambda made, crew, asked: kills.trainings(made, crew, asked.spawned_kills, asked.seed, 2, "spawn"),
    "commands": lambda made, crew, asked: kills.other_commands(
        made, crew, asked.command_kills, asked.seed, asked.commands
    ),
    "full": lambda made, crew, asked: disks.full(made, crew, asked.levels, asked.seed),
    "read-only": lambda made, crew, asked: disks.read_only(made, crew),
    "two": lambda made, crew, asked: disks.twice(made, crew, asked.rounds),
    "server": lambda made, crew, asked: server.campaign(made, crew, asked.hostile, asked.honest, asked.seed),
    "folders": lambda made, crew, asked: folders.campaign(made, crew),
}
"""Each gives one tally or several."""
_FIRST = "made first"
KILLED = (
    *("evaluate", "interventions", "explain", "report", "serve", "export", "compare", "sweep", "chance", "masks"),
    *("prepare check", "init", "cache"),
)
START, END = "<!-- made by python -m faults: start -->", "<!-- made by python -m faults: end -->"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
FIGURES = Path(__file__).parent / "figures.json"
"""What was found when it was last run with ``--write``, by row; the table of the page is made from it."""


def campaign(root: Path, crew: Crew, options: argparse.Namespace) -> Iterator[tuple[str, Tally]]:
    """All that is asked for, with the processor time of each."""
    warm_up()
    made = make(root / "material", crew)
    yield _FIRST, Tally("made first: data and a run", seconds=_processor_seconds())
    for part in options.only:
        before = _processor_seconds()
        found = PARTS[part](made, crew, options)
        for tally in [found] if isinstance(found, Tally) else found:
            tally.seconds = _processor_seconds() - before
            before += tally.seconds
            yield part, tally


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=1600, help="bad inputs (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=inputs.SHARES, default=tuple(inputs.SHARES), help="of bad inputs")
    parser.add_argument("--kills", type=int, default=50, help="of training (default: %(default)s)")
    parser.add_argument("--command-kills", type=int, default=12, help="of each other command (default: %(default)s)")
    parser.add_argument("--commands", nargs="+", choices=KILLED, default=KILLED, help="that are killed beside train")
    parser.add_argument(
        "--device-kills", type=int, default=12, help="of training with two devices (default: %(default)s)"
    )
    parser.add_argument(
        "--spawned-kills",
        type=int,
        default=2,
        help="the same in new interpreters (default: %(default)s)",
    )
    parser.add_argument("--levels", type=int, default=3, help="of full disks per command (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of two at once (default: %(default)s)")
    parser.add_argument("--hostile", type=int, default=10_000, help="requests (default: %(default)s)")
    parser.add_argument("--honest", type=int, default=1_000, help="requests (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="commands at once")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all time limits (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=tuple(PARTS), help="parts of the campaign")
    parser.add_argument("--folder", type=Path, default=_fast_folder(), help="to work in (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put what was found into docs/reliability.md")
    return parser.parse_args(words)


def _fast_folder() -> Path:
    """In memory where that is possible: a kill loses nothing that a sync would keep, and each sync of a disk takes as
    long as a whole command."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    return memory if roomy else Path(tempfile.gettempdir())


def keep(rows: list[dict[str, Any]]) -> None:
    """These rows take the place of their earlier ones, and the page is made anew."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else []
    order = [_FIRST, *PARTS]
    merged = {row["name"]: row for row in (*kept, *rows)}.values()
    kept = sorted(merged, key=lambda row: order.index(row["part"]))
    FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page(kept)


def section(kept: list[dict[str, Any]]) -> str:
    """The table of all parts, and the commands that it comes from."""
    names = [field.name for field in fields(Tally)]
    tallies = [Tally(**{name: row[name] for name in names} | {"faults": Counter(row["faults"])}) for row in kept]
    missing = [part for part in PARTS if all(row["part"] != part for row in kept)]
    missing += [kind for kind in inputs.SHARES if all(row["name"] != kind for row in kept) and "inputs" not in missing]
    commands = "\n".join(dict.fromkeys(row["command"] for row in kept))
    seconds = sum(tally.seconds for tally in tallies)
    minutes = (
        f"{seconds:,.0f} seconds of processor time are {seconds / 120:.1f} minutes on two cores that do nothing else."
    )
    text = f"{table(tallies)}\n\n{minutes} The rows were made by\n\n```text\n{commands}\n```"
    return text + (f"\n\nNot run yet: {', '.join(missing)}." if missing else "")


def write_page(kept: list[dict[str, Any]]) -> None:
    """Between the two marks of the page."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"faults: {PAGE} has no place for the table")
    PAGE.write_text(f"{before}{START}\n\n{section(kept)}\n\n{END}{after}", encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    started = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = shlex.join(["python", "-m", "faults", *(word for word in words or sys.argv[1:] if word != "--write")])
    found: list[tuple[str, Tally]] = []
    with workplace(options.folder) as root:
        crew = Crew(root / "cases", options.workers, options.patience)
        for part, tally in campaign(root, crew, options):
            found.append((part, tally))
            if options.write:  # at once: what was found stays, should a later part be cut short
                keep([{"part": part, "command": command, **_row(tally)}])
            for line in tally.examples[:20]:
                print(line, flush=True)
            faults = sum(tally.faults.values())
            print(f"{time.strftime('%H:%M:%S')} {tally.name}: {tally.cases} cases, {faults} faults", flush=True)
    print(f"\n{table([tally for _, tally in found])}\n")
    print(f"{sum(tally.cases for _, tally in found):,} cases in {(time.monotonic() - started) / 60:.1f} minutes")
    return 1 if any(tally.faults for _, tally in found) else 0


def _row(tally: Tally) -> dict[str, Any]:
    """As JSON has it; a long list of examples is cut short."""
    found = {"faults": dict(tally.faults), "seconds": round(tally.seconds), "examples": tally.examples[:20]}
    return {**vars(tally), **found}


if __name__ == "__main__":
    sys.exit(main())
