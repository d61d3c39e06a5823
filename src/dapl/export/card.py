"""The model card: what a person reads first on the hub, and the front matter that the hub reads."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import yaml

from dapl.export.folder import IMAGES, METRICS, ONNX, WALL, ExportConfig, ExportedImage
from dapl.metrics.registry import METRICS as REGISTERED
from dapl.metrics.registry import NUMBERS, shown
from dapl.models.contract import PrototypeModel

_SYSTEMS = {
    "dapl": "DAPL (Diversity-Aware Prototype Learning)",
    "protopnet": "ProtoPNet",
    "protopshare": "ProtoPShare",
    "pixpnet": "PixPNet",
    "blackbox": "a linear layer on pooled features, without prototypes",
}
_FITTED = {"stretch": "stretched to a square", "crop": "cut to the central square", "pad": "padded to a square"}


class CardFacts(Protocol):
    """What a card is written from: `dapl.export.hub.ExportedModel` has it."""

    @property
    def model(self) -> PrototypeModel: ...
    @property
    def config(self) -> ExportConfig: ...
    @property
    def images(self) -> dict[int, ExportedImage]: ...
    @property
    def metrics(self) -> dict[str, Any] | None: ...
    @property
    def wall(self) -> bytes | None: ...


def model_card(exported: CardFacts, with_onnx: bool = False) -> str:
    """README.md. ``with_onnx``: model.onnx lies beside it."""
    sections = [_about(exported), _use(exported, with_onnx), _numbers(exported), _prototypes(exported)]
    front = yaml.safe_dump(_front_matter(exported), sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(exported: CardFacts) -> dict[str, Any]:
    config = exported.config
    found: dict[str, Any] = {
        "library_name": "dapl",
        "pipeline_tag": "image-classification",
        "tags": list(dict.fromkeys(("dapl", config.model.system, "prototypes", "interpretability"))),
    }
    measured = [
        {"type": name, "name": NUMBERS[name].heading, "value": number["value"]}
        for name, number in _measured(exported.metrics)
    ]
    if measured:
        protocol = (exported.metrics or {}).get("protocol", {})
        data = str(protocol.get("data") or config.data.name or "unknown")
        dataset = {"type": data, "name": data, "split": str(protocol.get("split", "test"))}
        task = {"type": "image-classification"}
        results = [{"task": task, "dataset": dataset, "metrics": measured}]
        found["model-index"] = [{"name": f"{config.model.system}-{data}", "results": results}]
    return found


def _about(exported: CardFacts) -> str:
    config = exported.config
    system, backbone = config.model.system, config.model.backbone.name
    count = len(exported.model.prototypes)
    kept = int(exported.model.prototypes.kept.sum())
    lines = [
        f"# {_SYSTEMS.get(system, system).split(' (')[0]} on {html.escape(config.data.name) or 'images'}",
        "",
        f"An image classifier of {len(config.classes)} classes: {_SYSTEMS.get(system, system)} on {backbone}.",
    ]
    if count:
        lines[-1] += (
            f" It compares parts of an image with {kept} prototypes, each of them a patch of a training image, and "
            "its logits are sums of similarity × weight: every decision can be taken apart into what looked like what."
        )
    names = ", ".join(map(_code, config.classes[:10]))
    if len(config.classes) > 10:
        names += f", … ({len(config.classes) - 10} more)"
    return "\n".join([*lines, "", f"Classes: {names}. `config.json` has them in the order of the logits."])


def _code(name: str) -> str:
    """A name as it is, whatever it holds: Markdown reads neither HTML nor emphasis between backticks."""
    return f"`{' '.join(name.replace('`', chr(39)).split())}`"


def _use(exported: CardFacts, with_onnx: bool) -> str:
    size, how = exported.config.data.image_size, _FITTED[exported.config.data.fit]
    explain = ['model.explain("image.jpg").save("why.html")'] if len(exported.model.prototypes) else []
    code = ["import dapl", 'model = dapl.load("FOLDER")', 'print(model.predict("image.jpg"))', *explain]
    text = ["## Use", "", "With `dapl` installed and `FOLDER` the folder of this file:", "", "```python", *code, "```"]
    text += ["", "From the hub, by its name, the model is `dapl.export.hub.ExportedModel.from_pretrained(NAME)`."]
    text += ["", f"Images are {how} of {size}×{size} pixels; normalisation is inside the model."]
    if with_onnx:
        text += [
            "",
            f"`{ONNX}` is the same model for ONNX Runtime: `images` float32 B×3×{size}×{size}, RGB in [0, 1], in; "
            f"{_outputs(exported)} out.",
        ]
    return "\n".join(text)


def _outputs(exported: CardFacts) -> str:
    if len(exported.model.prototypes) == 0:
        return "`logits` B×C and `scores`"
    return "`logits` B×C, `scores` B×P and activation `maps` B×P×H×W"


def _numbers(exported: CardFacts) -> str:
    measured = list(_measured(exported.metrics))
    if not measured:
        return "## Numbers\n\nNothing was measured before the export."
    protocol = (exported.metrics or {}).get("protocol", {})
    where = html.escape(f"{protocol.get('data', 'data')}, {protocol.get('split', 'test')} split")
    if isinstance(protocol.get("images"), int):
        where += f", {protocol['images']} images"
    rows = [
        f"| {NUMBERS[name].heading} | {shown(name, number['value'], digits=3)} | {_interval(name, number)} |"
        for name, number in measured
    ]
    return "\n".join(
        [
            "## Numbers",
            "",
            f"On {where}; `{METRICS}` has all of them and the protocol.",
            "",
            "| | value | 95 % interval |",
            "|---|---|---|",
            *rows,
        ]
    )


def _measured(metrics: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those of the card's numbers that the run's metrics.json has."""
    numbers = (metrics or {}).get("numbers")
    if not isinstance(numbers, dict):
        return
    for name in (metric.name for metric in REGISTERED if metric.card):
        number = numbers.get(name)
        if isinstance(number, dict) and _finite(number.get("value")):
            yield name, number


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _interval(name: str, number: Mapping[str, Any]) -> str:
    low, high = number.get("low"), number.get("high")
    if low is None or high is None or not (_finite(low) and _finite(high)):
        return ""
    return f"{shown(name, low, digits=3)} … {shown(name, high, digits=3)}"


def _prototypes(exported: CardFacts) -> str:
    if not exported.images:
        return ""
    text = ["## Prototypes", "", f"`{IMAGES}/` holds the patch of each; `prototypes.json` says where it came from."]
    if exported.wall is not None:
        text += ["", f"![Prototypes, one row per class]({WALL})"]
    return "\n".join(text)
