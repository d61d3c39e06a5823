"""Frames of a video, evenly spaced, by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dapl.common.errors import DaplError


class VideoError(Exception):
    """A video of which no frame can be read; the message says why."""


@dataclass(frozen=True)
class Frame:
    number: int
    """From 0, in the order of presentation."""
    time: float | None
    """Seconds from the start; None for a frame that could not be read."""
    image: np.ndarray | None
    """uint8 H×W×3, RGB."""
    left_out: str | None = None
    """Why there is no image."""


def wanted_frames(total: int, count: int) -> list[int]:
    """The middles of ``count`` equal stretches of ``total`` frames; all of them where there are not more.

    >>> wanted_frames(100, 4), wanted_frames(3, 10)
    ([12, 37, 62, 87], [0, 1, 2])
    """
    if total <= count:
        return list(range(total))
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def sampled_frames(path: Path, count: int) -> Iterator[Frame]:
    """``count`` frames, one after another; those that a damaged video does not give any more come without an image.

    The video is decoded from its start, not sought: a frame's number is then its number for every decoder.
    """
    av = _av()
    try:
        with av.open(str(path)) as container:
            stream = _video_stream(container)
            total = stream.frames or _count(av, path)
            if not total:
                raise VideoError("holds no frame; it may be truncated")
            yield from _decoded(av, container, stream, total, wanted_frames(total, count))
    except av.FFmpegError as error:
        raise VideoError(f"not a video that can be read, or truncated ({_reason(error)})") from error


def _decoded(av: Any, container: Any, stream: Any, total: int, wanted: list[int]) -> Iterator[Frame]:
    number, trouble, left = 0, "the file ends", set(wanted)
    try:
        for frame in container.decode(stream):
            if number in left:
                left.discard(number)
                time = frame.time if frame.time is not None else number / float(stream.average_rate or 25)
                yield Frame(number, round(float(time), 4), frame.to_ndarray(format="rgb24"))
            number += 1
            if not left:
                return
    except av.FFmpegError as error:
        trouble = _reason(error)
    why = f"damaged or truncated video: frame {number} of {total} cannot be read ({trouble})"
    for missed in sorted(left):
        yield Frame(missed, None, None, why)


def _video_stream(container: Any) -> Any:
    if not container.streams.video:
        raise VideoError("has no video stream; it may be truncated")
    return container.streams.video[0]


def _count(av: Any, path: Path) -> int:
    """Where the header does not say how many frames there are."""
    with av.open(str(path)) as container:
        return sum(1 for packet in container.demux(_video_stream(container)) if packet.size)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise DaplError(f"reading videos needs PyAV ({error}); pip install 'dapl[faces]'.") from error
    av.logging.set_level(av.logging.PANIC)  # a damaged video is told by us, once
    return av
