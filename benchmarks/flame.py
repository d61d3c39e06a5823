"""Where the time of a training epoch on cached features goes: a flame graph as SVG, and its widest functions as text.

    python -m benchmarks.flame build/flame.svg

The paper's head (200 classes × 10 heads, D1 = 16) with the foreground loss over all prototypes, on features of an
EfficientNet-Lite0; random ones, which cost what real ones cost. A thread looks at the stack of the training thread
again and again; width is the share of looks. Forward operations appear under the line of dapl that calls them, what
autograd does on its own under ``backward``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from types import FrameType

import torch

from dapl.batches.sources import Features, FeatureSource
from dapl.common.seeds import generator
from dapl.config import BackboneConfig, DaplModel, ForegroundConfig, LossConfig, WarmUpStage
from dapl.models.build import build_model
from dapl.processes.interface import SingleProcess
from dapl.training.stages import FitEpoch, Objective, make_optimizer

CLASSES, IMAGES, SIDE = 200, 800, 7
EVERY = 0.002
"""Seconds between two looks."""
WIDTH, ROW = 1200, 18

Stack = tuple[str, ...]


def epoch() -> Callable[[], None]:
    """An epoch of warm-up, ready to start."""
    model = build_model(DaplModel(backbone=BackboneConfig(weights="random")), CLASSES)
    drawn = generator("flame")
    features = torch.rand(IMAGES, 1, model.backbone.channels, SIDE, SIDE, generator=drawn)
    masks = torch.rand(IMAGES, 1, SIDE, SIDE, generator=drawn)
    labels = torch.randint(CLASSES, (IMAGES,), generator=drawn).tolist()
    source = FeatureSource(Features(features, masks), range(IMAGES), labels)
    stage = WarmUpStage(epochs=1)
    optimizer = make_optimizer(model, stage)
    objective = Objective(model, LossConfig(foreground=ForegroundConfig(weight=10.0)))
    one = FitEpoch(SingleProcess(), objective, objective.draw_negatives, optimizer, stage, source, (0, 0), 0)
    return lambda: sum(1 for _ in one.steps()) and None


def looks(call: Callable[[], None]) -> Counter[Stack]:
    """How often each stack of functions was seen while the call ran in this thread."""
    seen: Counter[Stack] = Counter()
    thread, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(EVERY):
            seen[tuple(_names(sys._current_frames()[thread]))] += 1

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return seen


def _names(frame: FrameType | None) -> list[str]:
    """From the outermost function of dapl inwards."""
    names = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        if module != "__main__":
            names.append(f"{module.removeprefix('dapl.')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    names.reverse()
    first = next((n for n, name in enumerate(names) if name.startswith("training.stages.steps")), 0)
    return names[first:]


def widest(seen: Counter[Stack], number: int = 15) -> list[tuple[str, float]]:
    """Lines of dapl with the largest share of looks, by the innermost one of each stack.

    >>> widest(Counter({("training.a:1", "torch.b:2"): 3, ("training.a:1", "models.c:3"): 1}))
    [('training.a:1', 0.75), ('models.c:3', 0.25)]
    """
    total, of_line = sum(seen.values()), Counter[str]()
    for stack, count in seen.items():
        own = [name for name in stack if name.startswith(("training.", "models.", "batches.", "metrics.", "common."))]
        of_line[own[-1] if own else "elsewhere"] += count
    return [(name, count / total) for name, count in of_line.most_common(number)]


def boxes(seen: Counter[Stack], depth: int = 0, left: float = 0.0) -> Iterator[tuple[int, float, float, str]]:
    """(row, left, width, name) of every box, in shares of the whole."""
    total = sum(seen.values())

    def within(stacks: Counter[Stack], depth: int, left: float) -> Iterator[tuple[int, float, float, str]]:
        parts: dict[str, Counter[Stack]] = {}
        for stack, count in stacks.items():
            if stack:
                parts.setdefault(stack[0], Counter())[stack[1:]] += count
        for name, inner in sorted(parts.items()):
            width = sum(inner.values()) / total
            yield depth, left, width, name
            yield from within(inner, depth + 1, left)
            left += width

    yield from within(seen, depth, left)


def drawing(seen: Counter[Stack]) -> str:
    """The flame graph; a box says its name and share when the mouse is on it."""
    found = list(boxes(seen))
    height = ROW * (max(row for row, *_ in found) + 1)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-size="11">']
    for row, left, width, name in found:
        if width * WIDTH < 1:
            continue
        hue = 20 + sum(name.partition(":")[0].encode()) % 40
        x, y, wide = left * WIDTH, height - ROW * (row + 1), width * WIDTH
        shown = escape(name[: int(wide / 6.5)]) if wide > 30 else ""
        lines.append(
            f"<g><title>{escape(name)}: {width:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 1}" '
            f'fill="hsl({hue} 85% 65%)"/><text x="{x + 3:.1f}" y="{y + 13}">{shown}</text></g>'
        )
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    run = epoch()
    found = looks(run)
    started = time.process_time()
    run()
    print(f"{time.process_time() - started:.2f} s of the processor in an epoch that nobody looks at")
    for name, share in widest(found):
        print(f"{share:6.1%}  {name}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(sys.argv[1]).write_text(drawing(found), encoding="utf-8")
