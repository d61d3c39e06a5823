"""Many classes: a training step, a projection and an evaluation on synthetic features, with time and peak memory.

    python -m benchmarks.many_classes 10000 docs/scale.md

The paper's head (10 heads, D1 = 16) on features 64×7×7; the features are random, which cost what real ones cost. Each
of the three has a process of its own, so that the memory of one is not that of another; what was measured stands in
build/many_classes.json and is not measured again.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dapl.batches.sources import Batch
from dapl.common.files import write_json
from dapl.common.seeds import generator
from dapl.config import LossConfig
from dapl.evaluation.passes import read_off
from dapl.metrics import Coverage
from dapl.metrics.functional.regions import model_regions
from dapl.models import Dapl, create_backbone
from dapl.processes.interface import SingleProcess
from dapl.training.projection import project
from dapl.training.stages import Objective
from dapl.training.state import judge_images, judged

BATCH, HEADS, SIDE, PARTS = 80, 10, 7, 6


def measure(
    classes: int, batches: int = 2, only: Sequence[str] = ("step", "projection", "evaluation")
) -> Iterator[tuple[str, float, float, float]]:
    """(what, a number that it gave, seconds, GB of memory at most until then)."""
    model = Dapl(create_backbone("test_efficientnet", weights="random"), classes, HEADS, head_dim=16)
    model.backbone.requires_grad_(False)
    channels = model.backbone.channels
    data = [_batch(number, classes, channels) for number in range(batches)]

    def step() -> float:
        objective = Objective(model, LossConfig())
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(learning, lr=1e-3)
        terms = objective(data[0], objective.draw_negatives(generator("negatives")))
        terms["total"].backward()
        optimizer.step()
        return float(terms["total"].detach())

    def projection() -> float:
        return float((project(model, data, None, SingleProcess()).image >= 0).sum())

    @torch.no_grad()
    def evaluation() -> float:
        model.eval()
        coverage, found = Coverage(), []
        for batch in data:
            output = model.from_features(batch.features)  # type: ignore[arg-type]
            found.append(judge_images(output.logits, batch.labels))
            named, _ = model.prototypes_of(batch.labels)
            regions = model_regions(model, model.maps(output.embedding, named), 32)
            parts = torch.rand(len(regions), 1, PARTS, 32, 32, generator=generator("parts")) > 0.9
            coverage.update((regions.unsqueeze(2) & parts).flatten(3).any(3))
        read_off(model)
        return judged(torch.cat(found))["accuracy"]

    calls: dict[str, Callable[[], float]] = {"step": step, "projection": projection, "evaluation": evaluation}
    for name in only:
        call = calls[name]
        started = time.process_time()
        number = call()
        seconds = time.process_time() - started
        yield name, number, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _batch(number: int, classes: int, channels: int) -> Batch:
    drawn = generator("features", number)
    features = torch.rand(BATCH, channels, SIDE, SIDE, generator=drawn)
    labels = (torch.arange(BATCH) + number * BATCH) % classes
    return Batch(torch.arange(BATCH) + number * BATCH, labels, features=features)


MARKS = "<!-- made by benchmarks/many_classes.py: start -->\n", "<!-- made by benchmarks/many_classes.py: end -->\n"
KEPT = Path("build/many_classes.json")


def table(classes: int, rows: Sequence[dict[str, Any]], processor: str) -> str:
    """For docs/scale.md."""
    lines = [f"| {row['what']} | {row['seconds']:.1f} s | {row['memory_gb']:.2f} GB |" for row in rows]
    head = (
        f"`python -m benchmarks.many_classes {classes}`: {classes:,} classes × {HEADS} prototypes, {BATCH} images per "
        f"batch, an evaluation of {2 * BATCH}; {processor}, one thread."
    )
    return "\n".join([head, "", "| what | processor time | peak memory |", "|---|---|---|", *lines]) + "\n"


def main() -> None:
    from dapl.runs.provenance import provenance

    classes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if len(sys.argv) > 3:  # in a process of its own
        ((what, _, seconds, memory),) = measure(classes, only=[sys.argv[3]])
        print(json.dumps({"what": what, "seconds": seconds, "memory_gb": memory}))
        return
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"rows": []}
    rows = kept["rows"] if kept.get("classes") == classes else []
    for what in ("step", "projection", "evaluation"):
        if what not in [row["what"] for row in rows]:
            command = [sys.executable, "-m", "benchmarks.many_classes", str(classes), "-", what]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows = [*rows, json.loads(done.stdout.splitlines()[-1])]
            write_json(KEPT, {"classes": classes, "rows": rows})
        print(json.dumps(next(row for row in rows if row["what"] == what)), flush=True)
    if len(sys.argv) > 2:
        page, text = Path(sys.argv[2]), table(classes, rows, provenance([])["machine"]["processor"])
        before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
