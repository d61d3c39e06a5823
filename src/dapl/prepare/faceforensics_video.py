"""One video of FaceForensics++ to one folder: frames by PyAV, in each the face cut out, with its landmarks and mask.

The folder gets its name only when all is in it, so what has its name is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dapl.common.errors import BrokenError, DaplError, MissingError, WriteError, needing
from dapl.common.files import replacing_folder, write_json
from dapl.common.reading import open_regular, read_as
from dapl.data.faceforensics_files import LANDMARKS, VIDEO, ManifestLine, line_of, mask_name
from dapl.masks.faces import PARTS, FaceFinder, hull_mask, part_centres
from dapl.masks.polygons import bounding_box
from dapl.masks.refine import Prompt, Refiner, create_refiner

MIN_AGREEMENT = 0.5
"""A refined mask whose intersection over union with the hull is below this found something else than the face."""
_ON_THE_FACE = ("nose", "left cheek", "right cheek", "chin")
"""Parts whose centres are points on the face for SAM: neither hair nor glasses hide them often."""


# --- a video --------------------------------------------------------------------------------------------------------


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
class FaceSettings:
    """What decides the pixels and lines of a prepared folder."""

    frames: int
    size: int
    margin: float
    refine: str
    sam_model: str | None
    face_model: str


class Tools:
    """What is made once per process: the finder of faces and the refiner."""

    def __init__(self, settings: FaceSettings) -> None:
        self.refiner: Refiner = create_refiner(settings.refine, settings.sam_model)
        self.finder = FaceFinder(Path(settings.face_model))

    def close(self) -> None:
        self.finder.close()


def is_done(video: Video, root: Path, out: Path) -> bool:
    """Whether its folder is there and was made from the file as it is now."""
    try:
        return _made(video, out)["made_from"] == _state(root / video.source)
    except (MissingError, BrokenError, OSError, KeyError):
        return False


def read_records(video: Video, out: Path) -> list[ManifestLine]:
    return [line_of(fields) for fields in _made(video, out)["frames"]]


def _made(video: Video, out: Path) -> dict[str, Any]:
    return read_as(out / video.folder / VIDEO, dict[str, Any], "remove the folder of this video and run this again")


def prepare_video(video: Video, root: Path, out: Path, settings: FaceSettings, tools: Tools) -> None:
    """Whatever is wrong with the video goes into its records; only what is wrong with us or the disk is raised."""
    folder = out / video.folder
    try:
        with replacing_folder(folder) as new:  # an older one is of a file that has been replaced since
            state = _state(root / video.source)
            records = _write_frames(video, root / video.source, new, settings, tools)
            write_json(new / VIDEO, {"made_from": state, "frames": [asdict(record) for record in records]})
    except WriteError as error:
        raise DaplError(f"{error} The same command goes on where it stopped.") from error


def _write_frames(video: Video, path: Path, folder: Path, settings: FaceSettings, tools: Tools) -> list[ManifestLine]:
    records: list[ManifestLine] = []
    landmarks: list[np.ndarray] = []
    whole = ManifestLine(video.split, video.label, video.source)
    try:
        for frame in sampled_frames(path, settings.frames):
            line = replace(whole, frame=frame.number, time=frame.time)
            record, points = _write_frame(line, frame, video, folder, settings, tools)
            if points is not None:
                record = replace(record, row=len(landmarks))
                landmarks.append(points)
            records.append(record)
    except VideoError as error:
        records.append(replace(whole, left_out=str(error)))
    if landmarks:
        np.save(folder / LANDMARKS, np.stack(landmarks))
    return records


def _write_frame(
    record: ManifestLine, frame: VideoFrame, video: Video, folder: Path, settings: FaceSettings, tools: Tools
) -> tuple[ManifestLine, np.ndarray | None]:
    """The face of one frame into ``folder``: its line, and its landmarks where it has a face."""
    if frame.image is None:
        return replace(record, left_out=frame.left_out), None
    faces = tools.finder(frame.image)
    record = replace(record, face=bool(faces), faces=len(faces))
    if not faces:
        return replace(record, left_out="no face found"), None
    square = square_around(faces[0], settings.margin, frame.image.shape[:2])
    image = cut_out(frame.image, square, settings.size)
    points = landmarks_in(faces[0], square, settings.size)
    found = face_mask(image, points, tools.refiner)
    if not found.mask.any():
        return replace(record, left_out="the face's mask is empty"), None
    name = f"{frame.number:05}.png"
    Image.fromarray(image).save(folder / name)
    Image.fromarray(found.mask.astype(np.uint8) * 255).save(folder / mask_name(name))
    return replace(
        record,
        crop=square,
        method=found.method,
        agreement=round(found.agreement, 4),
        mask_area=round(float(found.mask.mean()), 4),
        file=f"{video.folder}/{name}",
    ), points


def _state(path: Path) -> list[int]:
    """Size and time of a file: another state, another video."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


# --- a face ---------------------------------------------------------------------------------------------------------


class Square(NamedTuple):
    left: int
    top: int
    side: int


class FaceMask(NamedTuple):
    mask: np.ndarray
    """bool S×S."""
    method: str
    agreement: float


def square_around(landmarks: np.ndarray, margin: float, frame: tuple[int, int]) -> Square:
    """The face's longer side and ``margin`` of it on each side, moved into the frame (height, width)."""
    x1, y1, x2, y2 = bounding_box(landmarks)
    side = round(max(x2 - x1, y2 - y1) * (1 + 2 * margin))

    def start(middle: float, length: int) -> int:
        begin = round(middle - side / 2)
        return min(max(begin, 0), length - side) if side <= length else (length - side) // 2

    return Square(start((x1 + x2) / 2, frame[1]), start((y1 + y2) / 2, frame[0]), side)


def cut_out(image: np.ndarray, square: Square, size: int) -> np.ndarray:
    """uint8 size×size×3. Where the square is larger than the frame, the frame's edge goes on."""
    height, width = image.shape[:2]
    before, after = max(0, -square.top), max(0, square.top + square.side - height)
    left, right = max(0, -square.left), max(0, square.left + square.side - width)
    top, start = max(0, square.top), max(0, square.left)
    part = image[top : square.top + square.side, start : square.left + square.side]
    part = np.pad(part, ((before, after), (left, right), (0, 0)), mode="edge")
    return np.array(Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC))


def landmarks_in(landmarks: np.ndarray, square: Square, size: int) -> np.ndarray:
    """float32 468×2 in pixels of the cut-out image."""
    return ((landmarks - (square.left, square.top)) * (size / square.side)).astype(np.float32)


def face_mask(image: np.ndarray, landmarks: np.ndarray, refiner: Refiner) -> FaceMask:
    """The hull, refined; the hull itself where the refinement strayed from it."""
    size = image.shape[0]
    hull = hull_mask(landmarks, (size, size))
    refined = refiner(image, Prompt(bounding_box(landmarks.clip(0, size)), _points(landmarks, size), hull))
    union = int((hull | refined).sum())
    agreement = int((hull & refined).sum()) / union if union else 0.0
    if agreement < MIN_AGREEMENT:
        return FaceMask(hull, "hull", agreement)
    return FaceMask(refined, refiner.name, agreement)


def _points(landmarks: np.ndarray, size: int) -> np.ndarray | None:
    centres = part_centres(landmarks)[[PARTS.index(name) for name in _ON_THE_FACE]]
    inside = ((centres >= 0) & (centres < size)).all(axis=1)
    return centres[inside] if inside.any() else None


# --- frames ---------------------------------------------------------------------------------------------------------


class VideoError(Exception):
    """A video of which no frame can be read; the message says why."""


@dataclass(frozen=True)
class VideoFrame:
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


def sampled_frames(path: Path, count: int) -> Iterator[VideoFrame]:
    """``count`` frames, one after another; those that a damaged video does not give any more come without an image.

    The video is decoded from its start, not sought: a frame's number is then its number for every decoder.
    """
    av = _av()
    try:
        with _opened(av, path) as container:
            stream = _video_stream(container)
            total = stream.frames or _count(av, path)
            if not total:
                raise VideoError("holds no frame; it may be truncated")
            yield from _decoded(av, container, stream, total, wanted_frames(total, count))
    except BrokenError as error:
        raise VideoError(str(error)) from error
    except av.FFmpegError as error:
        raise VideoError(f"not a video that can be read, or truncated ({_reason(error)})") from error


@contextmanager
def _opened(av: Any, path: Path) -> Iterator[Any]:
    """By its name FFmpeg would wait at a pipe for ever, and take some names for addresses."""
    with open_regular(path, "put the video itself there") as file, av.open(file) as container:
        yield container


def _decoded(av: Any, container: Any, stream: Any, total: int, wanted: list[int]) -> Iterator[VideoFrame]:
    number, trouble, left = 0, "the file ends", set(wanted)
    try:
        for frame in container.decode(stream):
            if number in left:
                left.discard(number)
                time = frame.time if frame.time is not None else number / float(stream.average_rate or 25)
                yield VideoFrame(number, round(float(time), 4), _upright(frame))
            number += 1
            if not left:
                return
    except av.FFmpegError as error:
        trouble = _reason(error)
    why = f"damaged or truncated video: frame {number} of {total} cannot be read ({trouble})"
    for missed in sorted(left):
        yield VideoFrame(missed, None, None, why)


def _upright(frame: Any) -> np.ndarray:
    """uint8 H×W×3, turned as players show it: a telephone films on its side and says so in the display matrix."""
    quarters = round(frame.rotation / 90)  # counter-clockwise, as np.rot90 turns
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), quarters))


def _video_stream(container: Any) -> Any:
    if not container.streams.video:
        raise VideoError("has no video stream; it may be truncated")
    return container.streams.video[0]


def _count(av: Any, path: Path) -> int:
    """Where the header does not say how many frames there are."""
    with _opened(av, path) as container:
        return sum(1 for packet in container.demux(_video_stream(container)) if packet.size)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _av() -> Any:
    with needing("reading videos needs PyAV", "faces"):
        import av
    av.logging.set_level(av.logging.PANIC)  # a damaged video is told by us, once
    return av
