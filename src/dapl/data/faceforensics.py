"""FaceForensics++ (Rössler et al., 2019) as `dapl prepare faceforensics` leaves it: faces, masks, landmarks, parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from dapl.common.errors import DaplError
from dapl.common.reading import regular_file
from dapl.data.faceforensics_files import LANDMARKS, MANIFEST, SPLITS, mask_name, read_manifest, read_settings
from dapl.data.listing import ExactParts, ImageRecord, ImageSize, Listing, MaskFile, file_stamp, require_every_class
from dapl.masks.faces import LANDMARKS as POINTS
from dapl.masks.faces import PARTS, part_centres, part_masks
from dapl.masks.polygons import bounding_box

_AGAIN = "remove the folder of this video and run `dapl prepare faceforensics` again"
_VERSION = 1
"""Raise when the same files would give other parts."""


@dataclass(frozen=True)
class FaceParts:
    """The parts of a face: polygons between its landmarks, so they are exact and need no file of their own.

    The keypoint of a part is the mean of the landmarks around it.
    """

    path: Path
    row: int

    def read(self, size: ImageSize) -> ExactParts:
        landmarks = self._landmarks()
        box = bounding_box(landmarks.clip(0, [size[1], size[0]]))
        return ExactParts(part_centres(landmarks), part_masks(landmarks, size), box)

    def identity(self) -> str:
        return f"{_VERSION} {self.row} {file_stamp(self.path)}"

    def _landmarks(self) -> np.ndarray:
        """float32 468×2 in pixels of the image."""
        try:
            found = np.load(regular_file(self.path, _AGAIN), mmap_mode="r", allow_pickle=False)
            if found.dtype != np.float32 or found.ndim != 3 or found.shape[1:] != (POINTS, 2):
                raise ValueError(f"{found.dtype} {found.shape} instead of float32 n×{POINTS}×2")
            return np.array(found[self.row])
        except (ValueError, IndexError, OSError) as error:
            raise DaplError(
                f"{self.path}: not the landmarks that the manifest tells of ({error}); {_AGAIN}."
            ) from error


def read_faceforensics(root: str | Path) -> Listing:
    """The faces of the official splits: a share of train as validation would have frames of one video on both sides."""
    root = Path(root)
    classes = list(read_settings(root)["classes"])
    splits = {"train": "train", "val": "validation", "test": "test"}
    assert tuple(splits) == SPLITS
    listing = Listing(str(root / MANIFEST), classes, list(PARTS), {split: [] for split in splits.values()}, mend=_AGAIN)
    for line in read_manifest(root):
        if line.split is not None and line.file is not None and line.row is not None:
            record = ImageRecord(
                name=line.file,
                path=root / line.file,
                label=classes.index(line.label),
                mask=MaskFile(root / mask_name(line.file)),
                exact=FaceParts(root / PurePosixPath(line.file).parent / LANDMARKS, line.row),
            )
            listing.records[splits[line.split]].append(record)
    mend = "the manifest says why frames were left out: add videos, or prepare without this class (--methods)."
    require_every_class(listing, mend)
    return listing
