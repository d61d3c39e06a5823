"""The model card: what a person reads first on the hub, and the front matter that the hub reads."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dapl.evaluation.result import chance_sentence, warning_text
from dapl.export.folder import IMAGES, METRICS, ONNX, WALL, ExportConfig
from dapl.metrics.registry import METRICS as REGISTERED
from dapl.metrics.registry import NUMBERS, shown

_SYSTEMS = {
    "dapl": "DAPL (Diversity-Aware Prototype Learning)",
    "protopnet": "ProtoPNet",
    "protopshare": "ProtoPShare",
    "pixpnet": "PixPNet",
    "blackbox": "a linear layer on pooled features, without prototypes",
}
_FITTED = {"stretch": "stretched to a square", "crop": "cut to the central square", "pad": "padded to a square"}

_PLAIN = re.compile(r"[\w .,'()-]+")


@dataclass(frozen=True)
class ModelCard:
    """What README.md of an exported folder says; ``str(card)`` is the file."""

    config: ExportConfig
    metrics: Mapping[str, Any] | None
    """As `dapl evaluate` wrote them."""
    prototypes: int
    kept: int
    beside: int
    """Prototypes of which more than half lies off the object."""
    has_images: bool
    has_wall: bool
    has_onnx: bool

    def __str__(self) -> str:
        front = yaml.safe_dump(self._front_matter(), sort_keys=False, allow_unicode=True)
        sections = filter(None, (self._about(), self._use(), self._numbers(), self._patches()))
        return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"

    @property
    def _protocol(self) -> Mapping[str, Any]:
        return (self.metrics or {}).get("protocol", {})

    def _measured(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The numbers of the card that metrics.json of the run has."""
        numbers = (self.metrics or {}).get("numbers")
        for name in (metric.name for metric in REGISTERED if metric.card):
            number = numbers.get(name) if isinstance(numbers, dict) else None
            if isinstance(number, dict) and _finite(number.get("value")):
                yield name, number

    def _front_matter(self) -> dict[str, Any]:
        system = self.config.model.system
        found: dict[str, Any] = {
            "library_name": "dapl",
            "pipeline_tag": "image-classification",
            "tags": list(dict.fromkeys(("dapl", system, "prototypes", "interpretability"))),
        }
        measured = [
            {"type": name, "name": NUMBERS[name].heading, "value": number["value"]} for name, number in self._measured()
        ]
        if measured:
            data = str(self._protocol.get("data") or self.config.data.name or "unknown")
            dataset = {"type": data, "name": data, "split": str(self._protocol.get("split", "test"))}
            results = [{"task": {"type": "image-classification"}, "dataset": dataset, "metrics": measured}]
            found["model-index"] = [{"name": f"{system}-{data}", "results": results}]
        return found

    def _about(self) -> str:
        config = self.config
        system, classes = _SYSTEMS.get(config.model.system, config.model.system), config.classes
        text = f"An image classifier of {len(classes)} classes: {system} on {config.model.backbone.name}."
        if self.prototypes:
            text += (
                f" It compares parts of an image with {self.kept} prototypes, each of them a patch of a training "
                "image, and its logits are sums of similarity × weight: every decision can be taken apart into what "
                "looked like what."
            )
        names = ", ".join(map(_code, classes[:10])) + (f", … ({len(classes) - 10} more)" if len(classes) > 10 else "")
        title = f"# {system.split(' (')[0]} on {html.escape(config.data.name) or 'images'}"
        return f"{title}\n\n{text}\n\nClasses: {names}. `config.json` has them in the order of the logits."

    def _use(self) -> str:
        size, how = self.config.data.image_size, _FITTED[self.config.data.fit]
        code = ["import dapl", 'model = dapl.load("FOLDER")', 'print(model.predict("image.jpg"))']
        if self.prototypes:
            code.append('model.explain("image.jpg").save("why.html")')
        paragraphs = [
            "## Use",
            "With `dapl` installed and `FOLDER` the folder of this file:",
            "\n".join(["```python", *code, "```"]),
            "From the hub, by its name, the model is `dapl.export.hub.ExportedModel.from_pretrained(NAME)`.",
            f"Images are {how} of {size}×{size} pixels; normalisation is inside the model.",
        ]
        if self.has_onnx:
            outputs = "`logits` B×C, `scores` B×P and activation `maps` B×P×H×W"
            paragraphs.append(
                f"`{ONNX}` is the same model for ONNX Runtime: `images` float32 B×3×{size}×{size}, RGB in [0, 1], in; "
                f"{outputs if self.prototypes else '`logits` B×C and `scores`'} out."
            )
        return "\n\n".join(paragraphs)

    def _numbers(self) -> str:
        rows = [
            f"| {NUMBERS[name].heading} | {shown(name, number['value'], 3)} | {_interval(name, number)} |"
            for name, number in self._measured()
        ]
        if not rows:
            return "## Numbers\n\nNothing was measured before the export."
        where = html.escape(f"{self._protocol.get('data', 'data')}, {self._protocol.get('split', 'test')} split")
        if isinstance(self._protocol.get("images"), int):
            where += f", {self._protocol['images']} images"
        table = "\n".join(["| | value | 95 % interval |", "|---|---|---|", *rows])
        text = f"## Numbers\n\nOn {where}; `{METRICS}` has all of them and the protocol.\n\n{table}"
        chance = chance_sentence((self.metrics or {}).get("chance"))
        text += f"\n\n{chance}" if chance else ""
        said = self._protocol.get("notice")
        text += f"\n\nAbout the accuracy: {html.escape(str(said), quote=False)}." if said else ""
        warnings = (self.metrics or {}).get("warnings")
        return text + (f"\n\n**Warning:** {html.escape(warning_text(warnings), quote=False)}" if warnings else "")

    def _patches(self) -> str:
        if not self.has_images:
            return ""
        text = f"## Prototypes\n\n`{IMAGES}/` holds the patch of each; `prototypes.json` says where it came from."
        if self.beside:
            text += f" Of {self.beside} of the {self.kept}, more than half lies off the object."
        return text + (f"\n\n![Prototypes, one row per class]({WALL})" if self.has_wall else "")


def _code(name: str) -> str:
    """A name as it is, whatever it holds. One with signs that HTML or Markdown read has them as numbers.

    >>> _code("Indigo Bunting"), _code("<b>")
    ('`Indigo Bunting`', '<code>&#60;b&#62;</code>')
    """
    name = " ".join(name.split())
    if _PLAIN.fullmatch(name):
        return f"`{name}`"
    return f"<code>{''.join(sign if _PLAIN.fullmatch(sign) else f'&#{ord(sign)};' for sign in name)}</code>"


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _interval(name: str, number: Mapping[str, Any]) -> str:
    low, high = (number.get(end, math.nan) for end in ("low", "high"))
    return f"{shown(name, low, 3)} … {shown(name, high, 3)}" if _finite(low) and _finite(high) else ""
