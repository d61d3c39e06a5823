"""FaceForensics++ (Rössler et al., 2019) as `dapl prepare faceforensics` leaves it: faces, masks, landmarks, parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.data.faceforensics_files import (
    LANDMARKS,
    MANIFEST,
    SPLITS,
    Record,
    mask_name,
    read_manifest,
    read_settings,
)
from dapl.data.images import read_image, read_mask
from dapl.data.sample import Sample
from dapl.data.transforms import in_frame
from dapl.masks.faces import LANDMARKS as POINTS
from dapl.masks.faces import PARTS, part_centres, part_masks
from dapl.masks.polygons import bounding_box


class FaceForensics:
    """The faces of one official split (``train``, ``val`` or ``test``) as a `Dataset`.

    Part masks are the polygons between the landmarks, so they are exact and need no file of their own; the keypoint of
    a part is the mean of the landmarks around it. ``manifest`` spares reading the file again for another split.
    """

    def __init__(self, root: str | Path, split: str = "train", manifest: Sequence[Record] | None = None) -> None:
        if split not in SPLITS:
            raise DaplError(f"FaceForensics++ has no split {split!r}; give one of {', '.join(SPLITS)}.")
        self.root = Path(root)
        self.classes: Sequence[str] = list(read_settings(self.root)["classes"])
        self.parts: Sequence[str] = PARTS
        records = read_manifest(self.root) if manifest is None else manifest
        kept = [
            (record.label, record.file, record.row)
            for record in records
            if record.split == split and record.file is not None and record.row is not None
        ]
        label_of = {name: label for label, name in enumerate(self.classes)}
        self.labels: Sequence[int] = [label_of[label] for label, _, _ in kept]
        self.names: Sequence[str] = [file for _, file, _ in kept]
        self._rows = [row for _, _, row in kept]
        self.has_masks = True
        empty = set(range(len(self.classes))) - set(self.labels)
        if empty:
            raise DaplError(
                f"{self.root / MANIFEST}: {self.classes[min(empty)]} has no {split} frame; the manifest says why "
                "frames were left out: add videos, or prepare without this class (--methods)."
            )
        self.fingerprint = self._fingerprint(split)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        name = self.names[index]
        path = self.root / name
        image = read_image(path)
        frame: tuple[int, int] = tuple(image.shape[-2:])
        landmarks = self._landmarks(index)
        masks = part_masks(landmarks, frame)
        seen = torch.from_numpy(masks.any(axis=(1, 2)))
        keypoints, visible = in_frame(torch.from_numpy(part_centres(landmarks)), seen, frame)
        box = bounding_box(landmarks.clip(0, [frame[1], frame[0]]))
        return Sample(
            image=image,
            label=self.labels[index],
            name=name,
            mask=read_mask(self.root / mask_name(name), frame, path),
            keypoints=keypoints,
            visible=visible,
            part_masks=tv_tensors.Mask(torch.from_numpy(masks.astype(np.uint8))),
            box=tv_tensors.BoundingBoxes(torch.tensor([box]), format="XYXY", canvas_size=frame),
        )

    def _landmarks(self, index: int) -> np.ndarray:
        """float32 468×2 in pixels of the image."""
        path = self.root / PurePosixPath(self.names[index]).parent / LANDMARKS
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if found.dtype != np.float32 or found.ndim != 3 or found.shape[1:] != (POINTS, 2):
                raise ValueError(f"{found.dtype} {found.shape} instead of float32 n×{POINTS}×2")
            return np.array(found[self._rows[index]])
        except FileNotFoundError:
            raise DaplError(f"{path}: no such file; {_AGAIN}.") from None
        except (ValueError, IndexError, OSError) as error:
            raise DaplError(f"{path}: not the landmarks that the manifest tells of ({error}); {_AGAIN}.") from error

    def _fingerprint(self, split: str) -> str:
        """From the name, size and time of each file."""
        hashed = hashlib.blake2b(f"faceforensics {split} {self.classes} {_VERSION}".encode(), digest_size=16)
        folders: dict[str, dict[str, str]] = {}
        for name, row in zip(self.names, self._rows, strict=True):
            folder, _, file = name.rpartition("/")
            if folder not in folders:
                folders[folder] = _states(self.root / folder)
            for needed in (file, mask_name(file), LANDMARKS):
                if needed not in folders[folder]:
                    raise DaplError(f"{self.root / folder / needed}: no such file; {_AGAIN}.")
                hashed.update(f"{folder} {row} {needed} {folders[folder][needed]}\n".encode())
        return hashed.hexdigest()


_AGAIN = "remove the folder of this video and run `dapl prepare faceforensics` again"
_VERSION = 1
"""Raise when the same files would give other parts."""


def _states(folder: Path) -> dict[str, str]:
    """Size and time of each file of a folder; none where it is not there."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: f"{entry.stat().st_size} {entry.stat().st_mtime_ns}" for entry in entries}
    except FileNotFoundError:
        return {}
