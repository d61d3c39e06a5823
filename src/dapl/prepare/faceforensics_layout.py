"""Where FaceForensics++ keeps its videos, and which split each belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dapl.common.errors import DaplError, nearest
from dapl.common.reading import read_json
from dapl.data.faceforensics_files import MANIPULATIONS, REAL, SPLITS

COMPRESSIONS = ("raw", "c23", "c40")


@dataclass(frozen=True)
class Video:
    """One video of one split."""

    split: str
    label: str
    source: str
    """Below the root, with forward slashes."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.source).stem

    @property
    def folder(self) -> str:
        """Where its frames go, below the prepared folder."""
        return f"{self.split}/{self.label}/{self.name}"


@dataclass(frozen=True)
class Plan:
    videos: list[Video]
    """Named by a split and there."""
    missing: list[Video]
    """Named by a split and not there."""
    unnamed: list[tuple[str, str]]
    """(label, source) of videos that are there and that no split names."""
    digest: str
    """Changes with the splits."""


def labels_of(methods: Sequence[str] | None) -> tuple[str, ...]:
    """Classes in their order: real, then the manipulations that were asked for, in the order of the publication."""
    chosen = MANIPULATIONS if methods is None else methods
    for method in chosen:
        if method not in MANIPULATIONS:
            raise DaplError(f"--methods: there is no manipulation '{method}'{nearest(method, MANIPULATIONS)}")
    return (REAL, *(method for method in MANIPULATIONS if method in chosen))


def make_plan(root: Path, compression: str, labels: Sequence[str]) -> Plan:
    """Which videos to read. A split that shares an identity with another is refused: results would be worthless."""
    splits = read_splits(root / "splits")
    folders = {label: _videos_folder(root, label, compression) for label in labels}
    there = {label: {path.name for path in (root / folder).glob("*.mp4")} for label, folder in folders.items()}
    videos: list[Video] = []
    missing: list[Video] = []
    for split, pairs in splits.items():
        for label in labels:
            for name in video_names(pairs, label):
                video = Video(split, label, f"{folders[label]}/{name}")
                (videos if name in there[label] else missing).append(video)
                there[label].discard(name)
    unnamed = [(label, f"{folders[label]}/{name}") for label in labels for name in sorted(there[label])]
    if not videos:
        raise DaplError(f"{root}: none of the videos that the splits name is there; check --compression.")
    digest = hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()
    return Plan(videos, missing, unnamed, digest)


def video_names(pairs: Sequence[tuple[str, str]], label: str) -> list[str]:
    """Files of one class: of each pair both originals, or both manipulations, each face put onto the other's video.

    >>> video_names([("033", "097")], "real"), video_names([("033", "097")], "FaceSwap")
    (['033.mp4', '097.mp4'], ['033_097.mp4', '097_033.mp4'])
    """
    if label == REAL:
        return sorted(f"{one}.mp4" for pair in pairs for one in pair)
    return sorted(f"{target}_{source}.mp4" for pair in pairs for target, source in (pair, pair[::-1]))


def read_splits(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Pairs of ids of train, val and test, each id in one pair of one split only."""
    splits = {split: _read_pairs(folder / f"{split}.json") for split in SPLITS}
    seen: dict[str, str] = {}
    for split, pairs in splits.items():
        for one in (one for pair in pairs for one in pair):
            if one in seen:
                where = "twice in one split" if seen[one] == split else f"in {seen[one]}.json and in {split}.json"
                raise DaplError(
                    f"{folder}: video {one} is {where}; a split may not share a face with another, so take it out of "
                    "one, or use the published splits."
                )
            seen[one] = split
    return splits


def _read_pairs(path: Path) -> list[tuple[str, str]]:
    pairs = read_json(path, "put the official train.json, val.json and test.json of FaceForensics++ there")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise DaplError(f'{path}: not a list of pairs of ids such as [["720", "672"], …]; take the published file.')
    if not pairs:
        raise DaplError(f"{path}: names no video; take the published file.")
    return [(first, second) for first, second in pairs]


def _is_pair(value: object) -> bool:
    # an id becomes part of a path: a name, nothing else
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) and one.isalnum() for one in value)


def _videos_folder(root: Path, label: str, compression: str) -> str:
    above = "original_sequences/youtube" if label == REAL else f"manipulated_sequences/{label}"
    folder = f"{above}/{compression}/videos"
    if (root / folder).is_dir():
        return folder
    others = [other for other in COMPRESSIONS if (root / above / other / "videos").is_dir()]
    hint = f"; there are videos of --compression {' and '.join(others)}" if others else ""
    leave = "" if label == REAL else f", or leave {label} out with --methods"
    raise DaplError(f"{root / folder}: no such folder{hint}; download these videos{leave}.")
