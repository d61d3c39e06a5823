"""What a run of interventions found: numbers with intervals, as a table, as JSON and as two drawings.

One drawing has the scores of all explanations as dots, the other one bird with what was done to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dapl.common.files import replacing, write_json
from dapl.common.tables import Column
from dapl.data.toybirds import PARTS, ToyBirds
from dapl.evaluation.interventions.subjects import BirdImage, ExplainedModel, Variant
from dapl.evaluation.statistics import Number

HEADINGS = {
    "completeness": "Com",
    "correctness": "Cor = SD",
    "contrastivity": "Con = TS",
    "mean": "mean",
    "csdc": "CSDC",
    "preservation": "PC",
    "deletion": "DC",
    "distractibility": "D",
}
"""Columns of the table, as the paper abbreviates them, the summaries first. Correctness is single deletion (SD) and
contrastivity is target sensitivity (TS), so each of these stands there once."""
MODEL_HEADINGS = {
    "accuracy": "accuracy",
    "background_independence": "background independence (BI)",
    "scene_independence": "same label at another place",
}
ABOUT = {
    "drops": "drops (what the logits really lose)",
    "shuffled": "shuffled (chance)",
    "even": "even (the same on every pixel)",
    "oracle": "oracle (another model, right by construction)",
}
"""The explanations that stand beside those that were asked for."""


@dataclass(frozen=True)
class Interventions:
    """Scores of explanations against interventions on drawn birds.

    >>> found = dapl.evaluation.interventions.run_interventions("runs/birds")     # doctest: +SKIP
    >>> found["own", "completeness"]                                              # doctest: +SKIP
    0.71
    """

    protocol: dict[str, Any]
    """Every choice that decides the numbers."""
    explanations: Mapping[str, Mapping[str, Number]]
    """By the name of the explanation, then of the score (`HEADINGS`)."""
    model: Mapping[str, Number]
    """What no explanation takes part in (`MODEL_HEADINGS`)."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Images on which each protocol applies."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """The share of the relevance that makes a piece important: the one that is best for each explanation."""

    def __getitem__(self, place: tuple[str, str]) -> float:
        """The value of a score of an explanation."""
        explanation, score = place
        return self.explanations[explanation][score].value

    def __repr__(self) -> str:
        rows = [f"{name} {numbers['mean'].value:.3f}" for name, numbers in self.explanations.items()]
        return f"Interventions({self.protocol['images']} images; mean of the scores: {', '.join(rows)})"

    def rows(self) -> list[dict[str, Any]]:
        """The table, one row per explanation, with the interval of each summary beside it."""
        return [
            {"explanation": ABOUT.get(name, name)} | {score: _cell(score, numbers[score]) for score in HEADINGS}
            for name, numbers in self.explanations.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not a number is null."""
        return {
            "protocol": self.protocol,
            "model": _plain(self.model),
            "explanations": {name: _plain(numbers) for name, numbers in self.explanations.items()},
            "counts": dict(self.counts),
            "thresholds": dict(self.thresholds),
        }

    def save(self, path: Path) -> Path:
        write_json(path, self.to_json())
        return path


COLUMNS = [Column("explanation"), *(Column(name, heading) for name, heading in HEADINGS.items())]


def _cell(score: str, number: Number) -> str:
    if math.isnan(number.value):
        return "–"
    if score in ("completeness", "correctness", "contrastivity"):
        return f"{number.value:.2f} [{number.low:.2f}, {number.high:.2f}]"
    return f"{number.value:.2f}"


def _plain(numbers: Mapping[str, Number]) -> dict[str, dict[str, float | None]]:
    return {
        name: {end: value if math.isfinite(value) else None for end, value in vars(number).items()}
        for name, number in numbers.items()
    }


def notes(found: Interventions) -> list[str]:
    """What stands below the table."""
    protocol, lines = found.protocol, []
    for name, number in found.model.items():
        lines.append(f"{MODEL_HEADINGS[name]}: {number.value:.3f}  [{number.low:.3f}, {number.high:.3f}]")
    lines.append(
        f"toy birds, {protocol['split']}: {protocol['images']} images, of which {found.counts['csdc']} count for CSDC "
        f"(rightly labelled) and {found.counts['target_sensitivity']} for TS (the model itself reacts)"
    )
    lines.append(
        f"in brackets 95 % intervals, {protocol['resamples']:,} resamples of the images; chance for SD and TS is 0.5"
    )
    return lines


FIGURES = ("scores.png", "bird.png")
_SUMMARIES = ("completeness", "correctness", "contrastivity")
_INK, _SOFT, _ASKED, _BESIDE = "#222222", "#8a8a8a", ("#1f5fa8", "#d1672b", "#3a8f5c", "#7d4fa0"), "#9a9a9a"
_MARKERS = {"drops": "D", "shuffled": "x", "even": "s", "oracle": "*"}


def write_figures(
    folder: Path, found: Interventions, birds: ToyBirds, rows: Sequence[int], subject: ExplainedModel
) -> list[Path]:
    """The two drawings in ``folder``."""
    figures = zip(FIGURES, (scores_figure(found), bird_figure(birds, rows, subject)), strict=True)
    paths = []
    for name, figure in figures:
        with replacing(folder / name) as temporary:
            figure.savefig(temporary, format="png", dpi=150)
        paths.append(folder / name)
    return paths


def scores_figure(found: Interventions) -> Figure:
    """One line per score, one mark per explanation; what is there for comparison is grey."""
    figure = Figure(figsize=(8.6, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scores = [name for name in HEADINGS if name != "mean"]
    asked = [name for name in found.explanations if name not in ABOUT]
    names = [*asked, *(name for name in found.explanations if name in ABOUT)]
    step = 0.7 / len(names)
    for number, name in enumerate(names):
        colour = _ASKED[asked.index(name) % len(_ASKED)] if name in asked else _BESIDE
        numbers = [found.explanations[name][score] for score in scores]
        values = np.array([one.value for one in numbers])
        ends = np.array([[one.value - one.low, one.high - one.value] for one in numbers]).T
        places = np.arange(len(scores)) + (number - (len(names) - 1) / 2) * step
        axes.errorbar(
            values,
            places,
            xerr=np.nan_to_num(ends).clip(0),
            fmt=_MARKERS.get(name, "o"),
            color=colour,
            markersize=6.5 if name in asked else 5,
            linewidth=1.1,
            label=ABOUT.get(name, name),
        )
    for row in range(0, len(scores), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f4f4f4", zorder=0, linewidth=0)
    axes.axhline(len(_SUMMARIES) - 0.5, color=_SOFT, linewidth=0.8)
    axes.set(xlim=(-0.03, 1.03), ylim=(len(scores) - 0.5, -0.5), yticks=range(len(scores)), xlabel="score, 1 is best")
    labels = [f"{name.replace('_', ' ')} ({HEADINGS[name]})" for name in scores]
    axes.set_yticklabels([label.replace("csdc (CSDC)", "controlled data check (CSDC)") for label in labels], fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e2e2e2", linewidth=0.7)
    axes.set_axisbelow(True)
    protocol = found.protocol
    what = f"{protocol.get('run', 'model')} ({protocol.get('system', 'any')})" if "run" in protocol else "A model"
    axes.set_title(f"{what}: explanations against interventions\n", loc="left", fontsize=11.5, color=_INK)
    caption = f"toy birds, {protocol['split']}, {protocol['images']} images; bars: 95 % intervals over images"
    axes.text(0, 1.01, caption, transform=axes.transAxes, fontsize=8.5, color=_SOFT, va="bottom")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def bird_figure(birds: ToyBirds, rows: Sequence[int], subject: ExplainedModel) -> Figure:
    """The first bird that is labelled rightly: its explanation, and the logit of its class after each change."""
    image = next((one for one in (BirdImage(birds, row) for row in rows) if _is_right(one, subject)), None)
    image = image or BirdImage(birds, rows[0])
    name = subject.names[0]
    values = subject.importances(image, torch.tensor([image.label]))[name][0]
    seen = image.visible[: len(PARTS)].nonzero().flatten()
    order = seen[values[seen].argsort(descending=True)].tolist()
    shares = values / values.clamp_min(0).sum().clamp_min(torch.finfo(values.dtype).tiny)
    changes = [("as it is", Variant())]
    changes += [(f"without {PARTS[part]}\n({shares[part]:.0%} of the relevance)", _alone(part)) for part in order[:2]]
    changes += [(f"without {PARTS[part]}\n({shares[part]:.0%} of the relevance)", _alone(part)) for part in order[-1:]]
    changes += [("without the bird", Variant(frozenset(PARTS))), ("at another place", Variant(background=0))]
    variants = [variant for _, variant in changes]
    logits, drawn = subject.logits(image, variants), image.drawn(variants)
    figure = Figure(figsize=(2.05 * (len(changes) + 1), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(changes) + 1)
    pixels = image.sample.image.as_subclass(torch.Tensor).unsqueeze(0).to(subject.device)
    relevance = subject.attributions[name](pixels, torch.tensor([image.label], device=pixels.device))[0].cpu()
    _show(panels[0], drawn[0], f"explanation\n({name.replace('_', ' ')})", "")
    strength = relevance.clamp_min(0) / relevance.max().clamp_min(torch.finfo(relevance.dtype).tiny)
    panels[0].imshow(strength.numpy(), cmap="inferno", alpha=0.25 + 0.6 * strength.numpy(), vmin=0, vmax=1)
    for axes, (text, _), row, one in zip(panels[1:], changes, logits, drawn, strict=True):
        change = float(row[image.label] - logits[0, image.label])
        label = int(row.argmax())
        says = "same label" if label == int(logits[0].argmax()) else f"now {birds.classes[label]}"
        value = f"logit {float(row[image.label]):.2f}" + ("" if text == "as it is" else f" ({change:+.2f})\n{says}")
        _show(axes, one, text, value)
    figure.suptitle(f"{birds.classes[image.label]}: the logit of its class", x=0.01, ha="left", fontsize=11, color=_INK)
    return figure


def _is_right(image: BirdImage, subject: ExplainedModel) -> bool:
    return int(subject.logits(image, [Variant()])[0].argmax()) == image.label


def _alone(part: int) -> Variant:
    return Variant(frozenset({PARTS[part]}))


def _show(axes: Axes, image: torch.Tensor, above: str, below: str) -> None:
    axes.imshow(image.permute(1, 2, 0).numpy())
    axes.set_title(above, fontsize=8.5, color=_INK)
    axes.set_xlabel(below, fontsize=8.5, color=_INK)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
