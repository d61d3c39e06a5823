"""What an evaluation says: numbers with intervals, what could not be measured and why, as an object, JSON and text.

Beside them the rows of chance: what trivial maps got on the same images.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import chain
from textwrap import wrap
from typing import Any

from dapl.evaluation.protocol import REGION_SHARE
from dapl.evaluation.statistics import Number
from dapl.metrics.registry import HEADLINES, METRICS, NUMBERS, given_by, shown

_WIDTH = 80
"""Columns of a terminal."""
_HEADING, _COLUMNS = 12, 7
"""Of the table of chance: characters of a heading per line, and columns side by side; more go on below."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """``evaluation["coverage"]`` is a value; ``evaluation.numbers["coverage"]`` has its interval as well.

    >>> Evaluation({"data": "cub", "split": "test"}, {"accuracy": Number(0.8169), "coverage": Number(0.596)})
    Evaluation(cub, test; accuracy 81.7%; coverage 0.596)
    """

    protocol: dict[str, Any]
    """All that decides the numbers: the options, and data, split, number of images, checkpoint, versions."""
    numbers: dict[str, Number]
    prototypes: dict[str, Any] = field(default_factory=dict)
    """How many there are, were kept, were projected, found no patch on the object."""
    missing: dict[str, str] = field(default_factory=dict)
    """Metrics that were asked for and could not be had, with the reason."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Coverage, precision and recall at each τ that was tried."""
    chance: Chance | None = None
    """What trivial maps get on the same images; None where that was not asked for, or nothing can be measured."""
    skipped: int = 0
    """Rows without a visible part, which have no Coverage and no Diversity."""
    warnings: list[str] = field(default_factory=list)
    """Reasons not to believe the numbers: constant maps, accuracy at chance, reasons that
    rest on background."""

    def __repr__(self) -> str:
        """Data, split and the numbers that overviews show; `table` has all."""
        shown_numbers = [f"{name} {shown(name, self[name], 3)}" for name in HEADLINES if name in self.numbers]
        where = f"{self.protocol.get('data')}, {self.protocol.get('split')}"
        return f"Evaluation({'; '.join([where, *shown_numbers])})"

    def _repr_html_(self) -> str:
        """The table, where a notebook shows the evaluation."""
        cells = [(indented(name), number) for name, number in self.numbers.items()]
        rows = [
            f"<tr><td>{escape(text).replace('  ', '&emsp;')}</td><td>{escape(_shown(name, number).strip())}</td></tr>"
            for name, (text, number) in zip(self.numbers, cells, strict=True)
        ]
        rest = "<br>".join(map(escape, "\n".join(table(self).split("\n\n")[1:]).splitlines()))
        return f"<table>{''.join(rows)}</table><p>{rest}</p>"

    def __getitem__(self, name: str) -> float:
        return self.numbers[name].value

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Evaluation:
        """From ``dataclasses.asdict``."""
        numbers = {name: Number(**number) for name, number in values["numbers"].items()}
        chance = None if values.get("chance") is None else Chance(**values["chance"])
        return cls(**values | {"numbers": numbers, "chance": chance})

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not a number is null."""
        return {
            "protocol": self.protocol,
            "numbers": {name: {k: _plain(v) for k, v in vars(number).items()} for name, number in self.numbers.items()},
            "prototypes": self.prototypes,
            "rows_without_visible_parts": self.skipped,
            "missing": self.missing,
            "warnings": self.warnings,
            "curves": {name: [_plain(value) for value in curve] for name, curve in self.curves.items()},
            "chance": None if self.chance is None else self.chance.to_json(),
        }


def indented(name: str) -> str:
    """The heading of a number in a table: what another number is made of stands further right."""
    return ("" if given_by(name).name == name else "  ") + NUMBERS[name].heading


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(result: Evaluation) -> str:
    """The numbers as aligned lines for a terminal, then the protocol, then what is missing and what is wrong.

    >>> print(table(dapl.evaluate("runs/cub20")))         # doctest: +SKIP
    """
    rows = [(indented(name), _shown(name, result.numbers[name])) for name in NUMBERS if name in result.numbers]
    rows += [(f"  {name}" if name != "prototypes" else name, text) for name, text in _prototype_lines(result)]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name:<{width}}  {text}" for name, text in rows]
    lines += ["", *_protocol_lines(result)]
    reasons: dict[str, list[str]] = {}
    for name, reason in result.missing.items():
        reasons.setdefault(reason, []).append(name.replace("_", " "))
    for reason, names in reasons.items():
        lines += _wrapped(f"not measured: {', '.join(names)}: {reason}")
    if result.warnings:
        lines += ["", *_wrapped(f"warning: {warning_text(result.warnings)}")]
    return "\n".join(lines)


def _wrapped(sentence: str) -> list[str]:
    """A long sentence as lines for a terminal, all but the first one indented."""
    return wrap(sentence, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def warning_text(warnings: Sequence[str]) -> str:
    """All reasons in one sentence, and what follows from them.

    >>> warning_text(["98% of the maps are constant"])
    '98% of the maps are constant. Do not draw conclusions from the other numbers.'
    """
    return f"{'; '.join(warnings)}. Do not draw conclusions from the other numbers."


def chance_of_model(result: Evaluation) -> str:
    """What trivial maps get on the same images, below the numbers of the model: the table of `Evaluation.chance`."""
    assert result.chance is not None
    own = {name: number.value for name, number in result.numbers.items()}
    return chance_table(result.chance, own, result.protocol["metrics"])


def _shown(name: str, number: Number) -> str:
    if math.isnan(number.value):
        return "–"
    if math.isnan(number.low):
        return f"{number.value:7.4f}"
    return f"{shown(name, number.value):>7}  [{shown(name, number.low)}, {shown(name, number.high)}]"


def _prototype_lines(result: Evaluation) -> list[tuple[str, str]]:
    counts = result.prototypes
    if not counts:
        return []
    lines = [("prototypes", f"{counts['prototypes']:7}")]
    for name in ("kept", "projected", "ungrounded"):
        if f"prototypes_{name}" in counts:
            lines.append((name, f"{counts[f'prototypes_{name}']:7}"))
    share = counts.get("patch_foreground_share")
    return lines if share is None else [*lines, ("patch foreground share", f"{share:7.4f}")]


def _protocol_lines(result: Evaluation) -> list[str]:
    p = result.protocol
    rows = "classes" if p["scope"] == "projection" else "images"
    lines = [f"{p['data']}, {p['split']}: {p['images']} images; {p['checkpoint']}"]
    if "notice" in p:
        lines.append(f"accuracy: {p['notice']}")
    if any(metric.name in result.numbers for metric in METRICS if metric.scoped and metric.name != "background_bias"):
        parts = "" if p["part_mode"] is None else f", τ {p['tau']:g}, parts {_part_text(p)}"
        lines.append(f"{region_text(p)}{parts}, scope {p['scope']}")
    if result.skipped:
        lines.append(f"{result.skipped} {rows} show no part and have neither Coverage nor Diversity")
    lines.append(
        f"in brackets 95 % intervals, {p['resamples']:,} resamples of the images"
        + (" (of the classes, for what is measured on sources)" if rows == "classes" else "")
    )
    if "purity" in result.numbers:
        lines.append("that of purity from resamples of the prototypes")
    if "control" in p and "faithfulness" in result.numbers:
        lines.append(f"faithfulness against the control {p['control']}: {_CONTROLS[p['control']]}")
    if p.get("field_share") is not None:
        lines.append(_field_text(p["field_share"]))
    if "spatial_misalignment" in result.numbers:
        lines.append(
            f"spatial misalignment: {min(p['attack_images'], p['images'])} images, one prototype each, pixels outside "
            f"its box changed by at most {p['attack_epsilon']:g} standard deviations in {p['attack_steps']} steps"
        )
    measured = [metric for metric in METRICS if metric.name in result.numbers]
    return lines + [f"{metric.name} took {metric.cost}" for metric in measured if metric.cost]


_CONTROLS = {
    "object": "the same shape elsewhere in the image, with an equal share of the object",
    "blob": "a blob of equal area inside the object",
    "anywhere": "the same shape rolled to any place, mostly background: regions on the object win easily",
}


def _field_text(share: float) -> str:
    """What a cell of the model sees of the image, where a number says something of regions."""
    if share < 0.995:
        return f"a cell of this model sees {share:.0%} of the image"
    return (
        "a cell of this model sees the whole image: a region says where the similarity is high, not where it comes "
        "from; read how much its own pixels carry"
    )


def region_text(protocol: dict[str, Any]) -> str:
    """How large regions are.

    >>> region_text({"percentile": 95.0})
    'regions above percentile 95'
    """
    region = protocol.get("region", "percentile")
    if region == "percentile":
        return f"regions above percentile {protocol['percentile']:g}"
    share = protocol.get("region_share")
    share = REGION_SHARE[region] if share is None else share
    return f"regions of {share:g} × {'the area of the object' if region == 'object' else 'the mass of the map'}"


def _part_text(protocol: dict[str, Any]) -> str:
    if protocol["radius"] is None:
        return str(protocol["part_mode"])
    of = "√(area of the box)" if protocol["radius_of"] == "box" else "the side"
    return f"{protocol['part_mode']} of radius {protocol['radius']:g} × {of}"


@dataclass(frozen=True)
class Chance:
    """Numbers of trivial maps by the name of the row; ``chance.rows["constant maps"]["coverage"]``.

    >>> Chance(10, {"constant maps": {"coverage": 0.0, "diversity": 0.5}}).numbers()
    ['coverage', 'diversity']
    """

    prototypes: int
    """Per class."""
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    """What could not be had is left out."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Under ``tau`` the thresholds that were tried, under the name of a row its Coverage at each."""
    missing: dict[str, str] = field(default_factory=dict)
    """Rows that the data does not allow, with the reason."""

    def numbers(self, metrics: Collection[str] | None = None) -> list[str]:
        """Names of the numbers that some row has, in the order of the tables; only of these metrics."""
        there = {name for row in self.rows.values() for name in row}
        return [name for name in NUMBERS if name in there and (metrics is None or given_by(name).name in metrics)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chance_table(chance: Chance, own: Mapping[str, float] | None = None, metrics: Iterable[str] | None = None) -> str:
    """One line per row, one column per metric; ``own``, the numbers of the model, stand above.

    >>> rows = {"constant maps": {"coverage": 0.0}, "random discs in the mask": {"coverage": 0.913, "diversity": 0.674}}
    >>> print(chance_table(Chance(10, rows), {"coverage": 0.589}))
    what chance gets on these images (10 prototypes per class, no model)
                              Coverage  Diversity
    this model                   0.589          –
    constant maps                0.000          –
    random discs in the mask     0.913      0.674
    """
    wanted = None if metrics is None else frozenset(metrics)
    names = [name for name in chance.numbers(wanted) if given_by(name).name == name]
    lines = [f"what chance gets on these images ({chance.prototypes} prototypes per class, no model)"]
    if names:
        rows = {"this model": own} if own is not None else {}
        for start in range(0, len(names), _COLUMNS):
            lines += [*([""] if start else []), *_aligned(names[start : start + _COLUMNS], {**rows, **chance.rows})]
    reasons: dict[str, list[str]] = {}
    for row, reason in chance.missing.items():
        reasons.setdefault(reason, []).append(row)
    if not chance.rows and len(reasons) == 1:
        return "\n".join([*lines, *_wrapped(f"not measured: {next(iter(reasons))}")])
    left_out = (_wrapped(f"left out: {'; '.join(rows)}: {reason}") for reason, rows in reasons.items())
    return "\n".join([*lines, *chain.from_iterable(left_out)])


def chance_sentence(kept: Any) -> str:
    """What stands beside Coverage and Diversity where there is no room for a table; ``kept`` as metrics.json has it.

    >>> chance_sentence({"rows": {"smooth noise in the mask": {"coverage": 0.976, "diversity": 0.738}}})
    'Without any model, on the same images: smooth noise in the mask has Coverage 0.976 and Diversity 0.738.'
    >>> chance_sentence(None)
    ''
    """
    rows = kept.get("rows") if isinstance(kept, Mapping) else None
    said = []
    for name in ("smooth noise in the mask", "random discs in the mask", "random discs in the image"):
        row = rows.get(name) if isinstance(rows, Mapping) else None
        numbers = [row.get(number) for number in ("coverage", "diversity")] if isinstance(row, Mapping) else [None]
        if all(isinstance(number, float) for number in numbers):
            said.append(f"{name} has Coverage {numbers[0]:.3f} and Diversity {numbers[1]:.3f}")
    return f"Without any model, on the same images: {', '.join(said)}." if said else ""


def _aligned(names: list[str], rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    headings = [wrap(NUMBERS[name].heading, _HEADING, break_long_words=False) for name in names]
    height = max(map(len, headings))
    headings = [[""] * (height - len(heading)) + heading for heading in headings]
    cells = {row: [_cell(name, found.get(name)) for name in names] for row, found in rows.items()}
    first = max(map(len, rows))
    widths = [
        max(len(text) for text in (*heading, *(line[place] for line in cells.values())))
        for place, heading in enumerate(headings)
    ]
    lines = [["", *(heading[line] for heading in headings)] for line in range(height)]
    lines += [[row, *line] for row, line in cells.items()]
    return [
        "  ".join((f"{line[0]:<{first}}", *(f"{text:>{width}}" for text, width in zip(line[1:], widths, strict=True))))
        for line in lines
    ]


def _cell(name: str, value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else shown(name, value, 3)
