"""Pictures from the outside: read with a limit, decoded by Pillow alone, never stored and never sent back as they came.

Whatever hides in a file beside its pixels (a ZIP after the last marker, HTML in a comment) is left behind when it is
decoded; what the page shows of it is encoded anew.
"""

from __future__ import annotations

import asyncio
import io

import dapl._torchvision  # noqa: F401  (before torchvision)  # isort: skip
from PIL import Image, UnidentifiedImageError
from starlette.requests import ClientDisconnect, Request
from torchvision import tv_tensors

from dapl.data.images import MAX_PIXELS, rgb_of, upright
from dapl.errors import DaplError
from dapl.serve.refusal import Refusal

MAX_BYTES = 10 * 2**20
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
"""What is tried. Pillow would also open formats that call other programs (EPS) or nest others (ICO, ICNS, PDF)."""
Image.init()  # or Pillow knows only some of them
_KNOWN = [name for name in FORMATS if name in Image.OPEN]  # AVIF depends on how it was built
_DISCARDED = 8 * MAX_BYTES
"""How much more is read of what is refused: a client that is still sending does not look for the answer."""
_SECONDS = 60.0
"""A client that takes longer to send a picture would keep a place from others."""
_NAMES = "JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF or PPM"


async def read_body(request: Request) -> bytes:
    """The body of a request, counted while it comes in, whatever its Content-Length says."""
    chunks: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                total += len(chunk)
                if total <= MAX_BYTES:
                    chunks.append(chunk)
                else:
                    chunks.clear()
                    if total > _DISCARDED:
                        break
    except TimeoutError:
        raise Refusal(408, f"The picture did not arrive within {_SECONDS:.0f} seconds; send it again.") from None
    except ClientDisconnect:
        raise Refusal(400, "The picture did not arrive as a whole; send it again.") from None
    if total > MAX_BYTES:
        raise Refusal(413, f"The file is larger than {MAX_BYTES // 2**20} MB; send a smaller one.")
    return b"".join(chunks)


async def discard_body(request: Request) -> None:
    """Read past what will not be looked at."""
    try:
        await read_body(request)
    except Refusal:
        return


def decode(content: bytes) -> tv_tensors.Image:
    """uint8 3×H×W RGB, upright: the pixels that `read_image` gives for the file."""
    if not content:
        raise Refusal(422, f"The file is empty; send a picture as {_NAMES}.")
    try:
        with Image.open(io.BytesIO(content), formats=_KNOWN) as file:
            width, height = file.size
            if width * height > MAX_PIXELS:
                raise _too_many_pixels()
            file.load()
            return rgb_of(upright(file), "The picture")
    except Refusal:
        raise
    except DaplError as error:
        raise Refusal(422, str(error)) from None
    except UnidentifiedImageError:
        raise Refusal(415, f"The file is not a picture that can be read; send {_NAMES}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels() from None
    except MemoryError:
        raise Refusal(413, "The picture does not fit into memory; scale it down.") from None
    except Exception:  # Pillow's decoders raise nearly anything on broken data
        raise Refusal(422, "The picture is corrupt or truncated; send another copy of it.") from None


def _too_many_pixels() -> Refusal:
    return Refusal(413, f"The picture has more than {MAX_PIXELS // 10**6} megapixels; scale it down.")
