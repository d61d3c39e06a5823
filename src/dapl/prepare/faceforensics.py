"""`dapl prepare faceforensics`: which videos there are, the work in one process or in several, and the manifest."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, nearest
from dapl.common.files import is_leftover, sweep_all, write_json
from dapl.common.liveness import end_with_parent
from dapl.common.locks import LOCK, locked
from dapl.common.progress import Advance, Reporter
from dapl.common.reading import read_bytes, read_json
from dapl.data.faceforensics_files import (
    MANIFEST,
    MANIPULATIONS,
    REAL,
    SETTINGS,
    SPLITS,
    ManifestLine,
    read_settings,
    write_manifest,
)
from dapl.masks.faces import face_model
from dapl.masks.refine import SAM_MODEL
from dapl.prepare.faceforensics_video import FaceSettings, Tools, Video, is_done, prepare_video, read_records

COMPRESSIONS = ("raw", "c23", "c40")


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


_tools: Tools | None = None
"""What a worker process makes with its first video, so that an error in it reaches the user as a sentence."""


def prepare_all(
    videos: Sequence[Video], root: Path, out: Path, settings: FaceSettings, workers: int, advance: Advance
) -> None:
    if workers == 1:
        with closing(Tools(settings)) as tools:
            for video in videos:
                prepare_video(video, root, out, settings, tools)
                advance(1)
        return
    # spawned, not forked: MediaPipe and torch have threads of their own, which a fork would leave behind
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(videos)), mp_context=context, initializer=_start)
    try:
        futures = [pool.submit(_prepare, video, root, out, settings) for video in videos]
        for future in as_completed(futures):
            future.result()
            advance(1)
    except BrokenProcessPool as error:
        raise DaplError(
            "a worker process died, probably for want of memory; the same command with fewer --workers goes on where "
            "this one stopped."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare(video: Video, root: Path, out: Path, settings: FaceSettings) -> None:
    global _tools
    if _tools is None:
        _tools = Tools(settings)
    prepare_video(video, root, out, settings, _tools)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and tells us by cancelling what is left
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes share the cores between them already
    with suppress(ImportError):
        import cv2

        cv2.setNumThreads(1)


_LINES = 20
"""So many lines about what was left out are printed; the manifest has all."""


def prepare_and_report(arguments: argparse.Namespace) -> int:
    """The command: files into ``arguments.out``, a table to standard output, what was left out to standard error.

    Its exit code is 1 where something was left out.
    """
    labels = labels_of(arguments.methods)
    settings, reporter = _settings(arguments), Reporter(arguments.quiet)
    records = prepare(
        arguments.root, arguments.out, settings, arguments.compression, labels, arguments.workers, reporter
    )
    print(_table(records, labels))
    print(f"\nmanifest     {arguments.out / MANIFEST}")
    print(f"train        dapl train configs/faceforensics-densenet161.yaml --data.root {arguments.out}")
    lines = what_was_left_out(records)
    for line in lines[:_LINES]:
        print(f"left out: {line}", file=sys.stderr)
    if len(lines) > _LINES:
        print(f"left out: {len(lines) - _LINES} more; {arguments.out / MANIFEST} has all.", file=sys.stderr)
    return 1 if lines else 0


def prepare(
    root: Path,
    out: Path,
    settings: FaceSettings,
    compression: str,
    labels: Sequence[str],
    workers: int,
    reporter: Reporter,
) -> list[ManifestLine]:
    """Prepare what is not prepared yet; returns the lines of the manifest."""
    plan = make_plan(root, compression, labels)
    with locked(out / LOCK, "preparing videos"):  # two in one folder would sweep away each other's work
        _keep_settings(out, settings, compression, labels, plan)
        sweep_all(out)
        todo = [video for video in plan.videos if not is_done(video, root, out)]
        if done := len(plan.videos) - len(todo):
            reporter.line(f"{done} of {len(plan.videos)} videos are done already")
        if todo:
            (out / MANIFEST).unlink(missing_ok=True)  # so that nobody trains on half of the work
            with reporter.track("videos", len(todo)) as advance:
                prepare_all(todo, root, out, settings, workers, advance)
        records = _records(plan, out)
        write_manifest(out, records)
    return records


def what_was_left_out(records: Sequence[ManifestLine]) -> list[str]:
    """A line for each video and reason: how many of its frames, or the video itself."""
    frames = Counter(record.source for record in records if record.frame is not None)
    reasons: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        if record.left_out is not None:
            reasons[record.source, record.left_out] += record.frame is not None
    return [
        f"{source}: {f'{count} of {frames[source]} frames: ' if count else ''}{reason}"
        for (source, reason), count in reasons.items()
    ]


def _records(plan: Plan, out: Path) -> list[ManifestLine]:
    records = [record for video in plan.videos for record in read_records(video, out)]
    for video in plan.missing:
        why = f"{video.split}.json names this video, and it is not there"
        records.append(ManifestLine(video.split, video.label, video.source, left_out=why))
    for label, source in plan.unnamed:
        records.append(ManifestLine(None, label, source, left_out="no split names this video"))
    return records


def _table(records: Sequence[ManifestLine], labels: Sequence[str]) -> str:
    """Frames of each class and split, and what else there is to know."""
    kept = [record for record in records if record.file is not None]
    count = Counter((record.label, record.split) for record in kept)
    width = max(map(len, labels))
    lines = [" ".join([f"{'frames':{width}}", *(f"{split:>8}" for split in SPLITS)])]
    for label in labels:
        lines.append(" ".join([f"{label:{width}}", *(f"{count[label, split]:8}" for split in SPLITS)]))
    several = sum((record.faces or 0) > 1 for record in kept)
    strayed = sum(record.method == "hull" for record in kept)
    if several:
        lines.append(f"\n{several} frames show more than one face; the largest was taken.")
    if strayed:
        lines.append(f"\n{strayed} masks are the plain hull, because the refinement strayed from it.")
    return "\n".join(lines)


def _settings(arguments: argparse.Namespace) -> FaceSettings:
    for name, least in (("frames", 1), ("size", 32), ("workers", 1), ("margin", 0)):
        if not getattr(arguments, name) >= least:  # also refuses NaN
            raise DaplError(f"--{name}: {getattr(arguments, name)} is too small; give {least} or more.")
    model = arguments.sam_model
    if model is not None and arguments.refine != "sam":
        raise DaplError(f"--sam-model: only for --refine sam, but --refine is {arguments.refine}.")
    if arguments.refine == "sam":
        model = model or SAM_MODEL
    face = str(face_model(arguments.face_model).resolve())
    return FaceSettings(arguments.frames, arguments.size, arguments.margin, arguments.refine, model, face)


def _keep_settings(out: Path, settings: FaceSettings, compression: str, labels: Sequence[str], plan: Plan) -> None:
    """Written by the first run; a later one with others is refused, since frames of both would be mixed."""
    now: dict[str, Any] = {
        **asdict(settings),
        # by its content: the file may lie elsewhere next time
        "face_model": hashlib.sha256(read_bytes(Path(settings.face_model), "name the model of MediaPipe")).hexdigest(),
        "compression": compression,
        "classes": list(labels),
        "splits": plan.digest,
    }
    if not (out / SETTINGS).exists():
        if any(path.name != LOCK and not is_leftover(path.name) for path in out.iterdir()):
            raise DaplError(f"{out}: is not empty, and nothing that this command made; name a new folder.")
        write_json(out / SETTINGS, now)
        return
    before = read_settings(out)
    for name, value in now.items():
        if before.get(name) != value:
            raise DaplError(
                f"{out}: was prepared with another {name} ({before.get(name)} then, {value} now); name a new folder, "
                "or give what it was prepared with."
            )
