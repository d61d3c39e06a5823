"""How interpretability is measured: every choice that changes a number, with the defaults of the paper or ours.

What is known of a run is kept by protocol: one full result, and beside it those of other protocols. Less never takes
the place of more. A result is what `Evaluation.to_json` gives. Two results have the same protocol when everything that
decides their numbers is the same; the numbers of both are then kept together.

Imports no torch, so that the command line can refuse a bad option at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dapl.common.errors import DaplError, nearest
from dapl.metrics.registry import chosen

PART_MODES = ("auto", "exact", "disc", "clipped", "voronoi", "point")
RADIUS_OF = ("box", "image")
REGIONS = ("percentile", "object", "mass")
REGION_SHARE = {"percentile": 0.05, "object": 0.1, "mass": 0.2}
SCOPES = ("image", "projection", "dataset")
CONTROLS = ("auto", "object", "blob", "anywhere")
SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class EvaluationProtocol:
    """Decisions 10 to 14. Pixels are those of the square image that the model sees (``data.image_size``).

    >>> EvaluationProtocol(tau=0.5).percentile
    95.0
    """

    region: str = "percentile"
    """How large a region is. ``percentile``: an equal share of every image (decision 10); ``object``: a share of the
    area of the object's mask; ``mass``: the smallest set of pixels that holds a share of the map's mass."""
    percentile: float = 95.0
    """A region holds the pixels at or above this percentile of its map (decision 10)."""
    region_share: float | None = None
    """A share of the object's area or of the map's mass; None is 0.1 of the object, 0.2 of the mass."""
    tau: float = 0.2
    """τ: a prototype is on a part when it covers more than this share of it."""
    part_mode: str = "auto"
    """``exact``: the data's own part masks; ``disc``, ``clipped``, ``voronoi``, ``point``: made from keypoints
    (decision 11). ``auto`` is exact where the data has part masks, else disc."""
    radius: float | None = None
    """The radius of discs as a share of what ``radius_of`` names; None is 0.12 of the box, 0.08 of the image."""
    radius_of: str = "box"
    """``box``: √(area of the object's box); ``image``: the side of the image."""
    scope: str = "image"
    """``image``: the mean over images; ``dataset``: assignments pooled over all images; ``projection``: each
    prototype on its own source image, the mean over classes (decision 12)."""
    control: str = "auto"
    """What a region is compared with in faithfulness. ``object``: the same shape elsewhere in the image, with an equal
    share of the object; ``blob``: a blob of equal area inside the object; ``anywhere``: the region rolled to any place.
    ``auto`` is object where the data has masks, else anywhere."""
    attack_epsilon: float = 0.4
    """Spatial misalignment: the largest change of a pixel, in standard deviations of ImageNet's channels (0.4 is about
    23 of 255)."""
    attack_steps: int = 10
    """Steps of projected gradient descent."""
    attack_images: int = 200
    """How many images are attacked, evenly over the split; one prototype each."""
    ece_bins: int = 15
    """Equal bins of confidence for the expected calibration error."""
    resamples: int = 1000
    """How often the bootstrap draws for the 95 % intervals."""
    seed: int = 0
    """The seed of the bootstrap, and of the noise and the random regions of the companions that need any."""

    def __post_init__(self) -> None:
        one_of("region", self.region, REGIONS)
        _between("percentile", self.percentile, 0, 100)
        if self.region_share is not None:
            if self.region == "percentile":
                raise DaplError("region_share: regions by percentile have their size from it; use object or mass.")
            _between("region_share", self.region_share, 0, 1)
        _between("tau", self.tau, 0, 1)
        one_of("part_mode", self.part_mode, PART_MODES)
        one_of("radius_of", self.radius_of, RADIUS_OF)
        one_of("scope", self.scope, SCOPES)
        one_of("control", self.control, CONTROLS)
        if self.radius is not None and not (0 < self.radius < math.inf):
            raise DaplError(f"radius must be above 0, but is {self.radius:g}.")
        if not (0 < self.attack_epsilon < math.inf):
            raise DaplError(f"attack_epsilon must be above 0, but is {self.attack_epsilon:g}.")
        for name in ("attack_steps", "attack_images", "ece_bins", "resamples"):
            if getattr(self, name) < 1:
                raise DaplError(f"{name} must be 1 or more, but is {getattr(self, name)}.")
        if self.seed < 0:
            raise DaplError(f"seed must be 0 or more, but is {self.seed}.")

    @property
    def share_of_region(self) -> float:
        """The share of the object's area or of the map's mass.

        >>> EvaluationProtocol(region="object").share_of_region
        0.1
        """
        return REGION_SHARE[self.region] if self.region_share is None else self.region_share

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def code_digest() -> str:
    """A digest of the source of metrics and evaluation: numbers that other code measured are not of this version."""
    rooms = [Path(__file__).parents[1] / name for name in ("metrics", "evaluation")]
    content = b"".join(path.read_bytes() for room in rooms for path in sorted(room.rglob("*.py")))
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise DaplError(f"{name}: '{value}' is not known{nearest(value, known)}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:  # also refuses NaN
        raise DaplError(f"{name} must lie strictly between {low:g} and {high:g}, but is {value:g}.")


OTHERS = "others"
"""Where metrics.json keeps the results of other protocols."""
Result = dict[str, Any]
Place = Literal["full", "added", "beside"]
"""What became of a new result: it is the one that is shown, it was added to that, or it stands beside it."""

_DECIDING = (*(field.name for field in fields(EvaluationProtocol)), "split", "data", "image_size", "fit", "images")
_OPEN = (None, "auto")
"""Values that leave a choice to the data; which one it was is only known where a metric needed it."""


def add_result(before: Result, new: Result) -> tuple[Result, Place]:
    """What metrics.json says after an evaluation, and what became of the new result.

    >>> full = {"protocol": {"split": "test", "metrics": sorted(chosen(None))}, "numbers": {"accuracy": 0.9}}
    >>> less = {"protocol": {"split": "validation", "metrics": ["accuracy"]}, "numbers": {"accuracy": 0.8}}
    >>> known, place = add_result(full, less)
    >>> known["numbers"], place, len(known["others"])
    ({'accuracy': 0.9}, 'beside', 1)
    """
    known = [_alone(before), *before.get(OTHERS, ())] if before else []
    known = [one for one in known if _same_model(one["protocol"], new["protocol"])]
    same = next((number for number, one in enumerate(known) if same_protocol(one["protocol"], new["protocol"])), None)
    if same is None:
        known.append(new)
        same = len(known) - 1
        merged = False
    else:
        merged = not is_full(new)
        known[same] = _merged(known[same], new)
    first = max(range(len(known)), key=lambda number: (_rank(known[number]), -number))
    others = [one for number, one in enumerate(known) if number != first]
    place: Place = "beside" if first != same else "added" if merged else "full"
    return known[first] | {OTHERS: others}, place


def same_protocol(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether everything that decides numbers is the same.

    >>> same_protocol({"tau": 0.2, "part_mode": "auto"}, {"tau": 0.2, "part_mode": "exact"})
    True
    >>> same_protocol({"tau": 0.2}, {"tau": 0.5})
    False
    """
    pairs = ((one.get(name), other.get(name)) for name in _DECIDING)
    return all(a == b or a in _OPEN or b in _OPEN for a, b in pairs)


def changed_fields(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What decides the numbers of ``one`` and is otherwise in ``other``.

    >>> changed_fields({"tau": 0.5, "split": "test"}, {"tau": 0.2, "split": "test"})
    {'tau': 0.5}
    """
    pairs = ((name, one.get(name), other.get(name)) for name in _DECIDING)
    return {name: a for name, a, b in pairs if a != b and a not in _OPEN and b not in _OPEN}


def is_full(result: Result) -> bool:
    """Whether all metrics that need no pass of their own were asked for.

    >>> is_full({"protocol": {"metrics": ["accuracy"]}})
    False
    """
    return chosen(None) <= set(result["protocol"].get("metrics", ()))


def _rank(result: Result) -> tuple[bool, bool]:
    """What is shown first: the test split, and all of its numbers."""
    return result["protocol"].get("split") == "test", is_full(result)


def _same_model(one: dict[str, Any], new: dict[str, Any]) -> bool:
    """Numbers of other weights are of another model, and forgotten. Older files do not say."""
    return one.get("weights") is None or one["weights"] == new.get("weights")


def _alone(result: Result) -> Result:
    return {name: value for name, value in result.items() if name != OTHERS}


def _merged(before: Result, new: Result) -> Result:
    """The numbers of two results of one protocol; where both have one, the new one counts."""
    numbers = before["numbers"] | new["numbers"]
    said = {name: value for name, value in new["protocol"].items() if value not in _OPEN}
    metrics = sorted({*before["protocol"].get("metrics", ()), *new["protocol"].get("metrics", ())})
    missing = before.get("missing", {}) | new.get("missing", {})
    other = [one for one in before.get("warnings", ()) if one not in new.get("warnings", ()) and not is_full(new)]
    merged = before | {name: value for name, value in new.items() if value}
    return merged | {
        "protocol": before["protocol"] | said | {"metrics": metrics},
        "numbers": numbers,
        "missing": {name: reason for name, reason in missing.items() if name not in numbers},
        "warnings": [*other, *new.get("warnings", ())],
    }
