"""`make_masks`: foreground masks for the images of a data set that have none, written where they are looked for.

Refiners see one image at a time. Where nothing else is known, `FeatureRefiner` takes what stands out in the features
of a backbone over all images, and cuts it out by colour.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dapl.common.errors import DaplError, WriteError
from dapl.common.files import append_line, write_new
from dapl.common.progress import Reporter
from dapl.config import BackboneConfig, DataSection
from dapl.data.build import list_files
from dapl.data.images import read_image
from dapl.data.listing import ImageRecord, ImageSize
from dapl.masks.doubts import MADE_LOG
from dapl.masks.polygons import Box, filled_box
from dapl.masks.refine import METHODS, GrabCutRefiner, Prompt, Refiner, create_refiner
from dapl.models.backbone import Backbone, create_backbone
from dapl.training.parts import FeatureForeground, feature_foreground

MAKERS = (*METHODS[:2], "features", *METHODS[2:])
"""How masks are made: `METHODS`, and by what stands out in the features of all images together."""
AROUND_POINTS = 0.25
"""GrabCut looks for the object in the box of its keypoints, wider by this share of it on each side."""


@dataclass
class MaskCounts:
    """What `make_masks` did."""

    folder: Path
    made: int = 0
    skipped: int = 0
    """Images that have a mask already."""
    left: int = 0
    """Images beyond the limit."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Names, and why."""


def make_masks(
    config: DataSection,
    method: str = "grabcut",
    model: str | None = None,
    limit: int | None = None,
    quiet: bool = False,
) -> MaskCounts:
    """``method``: one of `MAKERS`. ``model``: see `create_refiner`. ``limit``: make no more than so many.

    SAM is prompted with box and visible keypoints where there are, else with the centre of the image. A file that
    exists is never written over; what was made stays when this is interrupted, and the next call makes the rest.
    """
    bare, folder, have = records_without_masks(config)
    done = MaskCounts(folder, skipped=have, left=0 if limit is None else max(0, len(bare) - limit))
    paths, bare = [record.path for record in bare], bare[:limit]
    refiner = refiner_for(method, model, paths) if bare else None
    with Reporter(quiet).track("masks", len(bare)) as advance:
        for record in bare:
            assert refiner is not None
            try:
                line = _make(record, refiner)
            except WriteError:
                raise  # nor could the next one
            except DaplError as error:
                done.failed.append((record.name, str(error)))
            else:
                done.made += line is not None
                done.skipped += line is None
                if line is not None:
                    append_line(
                        folder / MADE_LOG, json.dumps(line | {"method": method, "model": model}, ensure_ascii=False)
                    )
            advance(1)
    return done


def refiner_for(method: str, model: str | None, images: Sequence[Path]) -> Refiner:
    """The maker of masks called ``method``, one of `MAKERS`; ``images``: what features are looked at in.

    >>> refiner_for("none", None, []).name
    'none'
    """
    return FeatureRefiner(images) if method == "features" and model is None else create_refiner(method, model)


def _make(record: ImageRecord, refiner: Refiner) -> dict[str, Any] | None:
    """What to write down of the mask; None where another process made it in the meantime."""
    assert record.mask_path is not None
    if record.mask_path.exists():
        return None
    image = np.ascontiguousarray(read_image(record.path).permute(1, 2, 0).numpy())
    kind, prompt = prompt_of(record, refiner.name, (image.shape[0], image.shape[1]))
    mask = refiner(image, prompt)
    share = float(mask.mean())
    if share in (0.0, 1.0):
        found = "no foreground" if share == 0 else "no background"
        raise DaplError(
            f"{record.path}: {refiner.name} found {found} from the {kind}; draw {record.mask_path} by hand, or take "
            "the image out."
        )
    if not _write_new(record.mask_path, mask):
        return None
    return {"name": record.name, "prompt": kind, "foreground": round(share, 4)}


def prompt_of(record: ImageRecord, method: str, size: ImageSize) -> tuple[str, Prompt]:
    """What is known of where the object is, in a word and for the refiner."""
    points = None
    if record.points is not None and record.visible is not None:
        inside = (record.points >= 0) & (record.points < [size[1], size[0]])
        points = record.points[record.visible & inside.all(axis=1)]
        points = points if len(points) else None
    box = _clipped(record.box, size)
    if box is not None:
        return "box and keypoints" if points is not None else "box", Prompt(box=box, points=points)
    if points is None:
        return "centre of the image", Prompt(points=np.array([[size[1] / 2, size[0] / 2]]))
    return "keypoints", Prompt(box=None if method == "sam" else _clipped(_around(points), size), points=points)


def _around(points: np.ndarray) -> Box:
    low, high = points.min(axis=0), points.max(axis=0)
    reach = (high - low).max() * AROUND_POINTS + 1
    return tuple(float(n) for n in (*(low - reach), *(high + reach)))  # type: ignore[return-value]


def _clipped(box: Box | None, size: ImageSize) -> Box | None:
    """None where nothing of it lies in the image."""
    if box is None:
        return None
    x1, x2 = (min(max(x, 0.0), size[1]) for x in (box[0], box[2]))
    y1, y2 = (min(max(y, 0.0), size[0]) for y in (box[1], box[3]))
    return (x1, y1, x2, y2) if x2 - x1 >= 1 and y2 - y1 >= 1 else None


def _write_new(path: Path, mask: np.ndarray) -> bool:
    """Whole or not at all, and never over a file that exists: False where there is one."""
    content = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(content, format="PNG")
    return write_new(path, content.getvalue())


def records_without_masks(config: DataSection) -> tuple[list[ImageRecord], Path, int]:
    """Images without a mask, the folder that masks go to, and how many images have one."""
    listing = list_files(config)
    if listing is None or listing.masks is None:
        name = getattr(config, "name", "?")
        raise DaplError(f"data.name: masks can be made for folder, coco and cub, not for {name}.")
    bare = [record for record in listing if record.mask is None]
    return bare, listing.masks, len(listing) - len(bare)


FEATURE_STAGES = (-2, "head")
"""The stages that `dapl train FOLDER` takes for heads that are parts: places, and what stands before pooling."""
FEATURE_SIDE = 224
FEATURE_SAMPLE = 300
"""Images that the components are taken from."""
WITHOUT_COLOURS = 0.1
"""Share of the image that is taken where colours tell nothing: about what a bird has of a photograph."""
_AT_ONCE = 16


class FeatureRefiner:
    """GrabCut from how likely each place is on the object by `feature_foreground`, which all the images together tell.

    Where nothing stands out, GrabCut is told the box or the middle of the image alone; where it finds nothing there
    either, the likeliest places are the mask.
    Nothing outside of a box that the prompt has lies on the object; points are surely on it where a box goes with them.

    >>> refiner = FeatureRefiner(sorted(Path("birds").rglob("*.jpg")))  # doctest: +SKIP
    >>> refiner(image, Prompt()).shape                                  # doctest: +SKIP
    (333, 500)
    """

    name = "features"

    def __init__(self, images: Sequence[Path], backbone: Backbone | None = None) -> None:
        """``backbone``: with the stages `FEATURE_STAGES`; None: the default of a config."""
        self._grabcut = GrabCutRefiner()
        self._backbone = (backbone or _default_backbone()).eval()
        self._foreground: FeatureForeground = self._fitted(images)

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        with torch.no_grad():
            likely = self._foreground(self._backbone(_square(pixels).unsqueeze(0)))
            likely = F.interpolate(likely.unsqueeze(1), image.shape[:2], mode="bilinear", align_corners=False)[0, 0]
        found = likely.numpy()
        if prompt.box is not None:
            found = found * filled_box(prompt.box, image.shape[:2])
        points = prompt.points if prompt.box is not None else None  # alone they are a guess, as the centre is
        for known in (Prompt(points=points, likely=found), Prompt(box=prompt.box, points=points)):
            mask = self._grabcut(image, known)
            if 0 < mask.mean() < 1:
                return mask
        return found > np.quantile(found, 1 - WITHOUT_COLOURS)

    @torch.no_grad()
    def _fitted(self, images: Sequence[Path]) -> FeatureForeground:
        sample = images[:: max(1, -(-len(images) // FEATURE_SAMPLE))]
        batches = []
        for first in range(0, len(sample), _AT_ONCE):
            pixels = torch.stack([_square(read_image(path)) for path in sample[first : first + _AT_ONCE]])
            batches.append(self._backbone(pixels))
        return feature_foreground(batches)


def _default_backbone() -> Backbone:
    fields = BackboneConfig(stages=list(FEATURE_STAGES), fuse=False).model_dump()
    return create_backbone(**fields)


def _square(image: Tensor) -> Tensor:
    """uint8 3×H×W → uint8 3×FEATURE_SIDE×FEATURE_SIDE, stretched."""
    resized = F.interpolate(image.unsqueeze(0).float(), (FEATURE_SIDE, FEATURE_SIDE), mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8)
