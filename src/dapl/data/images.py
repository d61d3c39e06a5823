"""Pixels from files: images as RGB and masks as 0 and 1, whatever way they were saved.

Both are returned upright: the EXIF orientation is applied. Annotations (keypoints, boxes, masks) are expected in the
coordinates of that upright image, the one that every viewer shows.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.common.reading import open_regular

MAX_PIXELS = 50_000_000
"""Images above this are refused before they are decoded: a small file can hold a huge image."""
FOREGROUND = 128
"""Masks graded from 0 to 255 (CUB: 0, 51, … 255, one fifth per annotator) are object from this value on."""

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Encoded:
    """An image file that lies in memory, or inside another file; read as one that has a path.

    >>> str(Encoded("train-000.tar: finch/0001", b"..."))
    'train-000.tar: finch/0001'
    """

    name: str
    data: bytes

    def __str__(self) -> str:
        return self.name


def read_image(path: str | Path | Encoded, max_pixels: int = MAX_PIXELS) -> tv_tensors.Image:
    """The image as uint8 3×H×W RGB, upright.

    Grey, palette, CMYK (inverted, as Adobe and every JPEG in use has it) and 16-bit images are converted; 16 bits are
    scaled to 8, not clipped. Transparency is composited on white, since the colour under a transparent pixel is
    arbitrary. Of an animation the first frame is taken. Colour profiles are not applied.
    """
    return rgb_of(_decode(path if isinstance(path, Encoded) else Path(path), max_pixels), path)


def rgb_of(image: Image.Image, name: str | Path | Encoded) -> tv_tensors.Image:
    """A decoded, upright image of any mode as `read_image` has it; ``name`` is for the message where it cannot be."""
    if image.mode.startswith("I") or image.mode == "F":
        grey = _to_8_bit(image, name)
        return tv_tensors.Image(torch.from_numpy(grey).expand(3, -1, -1).contiguous())
    try:
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        rgb = np.array(image.convert("RGB"))
    except ValueError as error:  # LAB and other colour spaces that need a profile
        raise DaplError(f"{name}: colour mode {image.mode} cannot be turned into RGB; save it as RGB.") from error
    return tv_tensors.Image(torch.from_numpy(rgb).permute(2, 0, 1).contiguous())


def read_mask(
    path: str | Path | Encoded,
    size: tuple[int, int] | None = None,
    image_path: str | Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tv_tensors.Mask:
    """The mask as uint8 H×W, 1 on the object: luminance ≥ 128, or all that is not 0 when the values are only 0 and 1.

    An alpha channel is ignored (two masks of CUB have one). ``size`` is (height, width) of the image the mask belongs
    to, and ``image_path`` its file, for the message when the two differ.
    """
    path = path if isinstance(path, Encoded) else Path(path)
    image = _decode(path, max_pixels)
    if image.mode == "F" or (image.mode.startswith("I") and not _is_binary(np.asarray(image))):
        grey = _to_8_bit(image, path)
    else:
        grey = np.asarray(image if image.mode.startswith("I") else image.convert("L"))
    foreground = grey > 0 if _is_binary(grey) else grey >= FOREGROUND
    if size is not None and foreground.shape != tuple(size):
        height, width = foreground.shape
        raise DaplError(
            f"{path}: the mask is {width}×{height} pixels, but its image {image_path or ''} is {size[1]}×{size[0]}"
            f" (width×height, upright by EXIF). Give a mask drawn on the upright image."
        )
    return tv_tensors.Mask(torch.from_numpy(foreground.astype(np.uint8)))


def _is_binary(values: np.ndarray) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)


def _to_8_bit(image: Image.Image, name: str | Path | Encoded) -> np.ndarray:
    """Pillow's own conversion of its 16-bit modes clips at 255. Mode I is what some formats hold 16 bits in."""
    values = np.asarray(image).astype(np.int64)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise DaplError(
            f"{name}: pixels of 32 bits (mode {image.mode}) have no known range; save it with 8 or 16 bits per channel."
        )
    return ((values * 255 + 32767) // 65535).astype(np.uint8)


def _decode(path: Path | Encoded, max_pixels: int) -> Image.Image:
    """Read and turned upright, in the mode of the file. Whatever goes wrong is the file's fault and names it."""
    try:
        # given a path, Pillow maps uncompressed TIFF files into memory and scrambles those with an orientation above 4
        with _open(path) as stream, Image.open(stream) as file:
            width, height = file.size
            if width * height > max_pixels:
                raise DaplError(
                    f"{path}: {width}×{height} pixels are more than the limit of {max_pixels:,}; scale it down."
                )
            file.load()
            return upright(file)
    except DaplError:
        raise
    except UnidentifiedImageError:
        size = len(path.data) if isinstance(path, Encoded) else path.stat().st_size
        what = "the file is empty" if size == 0 else "not an image, or its header is corrupt"
        raise DaplError(f"{path}: {what}; replace it or take it out of the data set.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DaplError(f"{path}: more pixels than Pillow opens ({error}); scale it down.") from None
    except OSError as error:
        if error.errno is None:  # Pillow's own: a broken file
            raise _corrupt(path, error) from error
        raise DaplError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error
    except MemoryError:
        raise DaplError(f"{path}: does not fit into memory; scale it down.") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on broken data
        raise _corrupt(path, error) from error


def _open(path: Path | Encoded) -> BinaryIO:
    if isinstance(path, Encoded):
        return io.BytesIO(path.data)
    return open_regular(path, "check the path and its permissions, or take it out of the data set")


def _corrupt(path: Path | Encoded, error: Exception) -> DaplError:
    reason = str(error)[:200]
    return DaplError(
        f"{path}: the image is corrupt or truncated ({reason}); replace it or take it out of the data set."
    )


def upright(image: Image.Image) -> Image.Image:
    """A copy, turned as its EXIF block says; as it is where there is none, or a broken one: the pixels are good."""
    try:
        turn = _UPRIGHT.get(int(image.getexif().get(_ORIENTATION, 1)))
    except (
        Exception
    ):  # on a broken block Pillow raises nearly anything: struct.error, SyntaxError, ZeroDivisionError, …
        turn = None
    return image.copy() if turn is None else image.transpose(turn)
