"""Files from the outside: good ones are read as `read_image` reads them, bad ones are refused and leave nothing."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from dapl.data.images import read_image
from dapl.serve.requests import MAX_BYTES, Refusal, decode

from .conftest import Server, encoded, image

GREY_16 = Image.fromarray(np.linspace(0, 65535, 64 * 48).round().astype(np.uint16).reshape(48, 64))
EXIF = Image.Exif()
EXIF[0x0112] = 6

GOOD = {
    "rgb.png": encoded(image()),
    "rgb.jpg": encoded(image(), "JPEG"),
    "grey.png": encoded(image().convert("L")),
    "palette.gif": encoded(image(), "GIF"),
    "clear.png": encoded(Image.merge("RGBA", [*image().split(), image(1).convert("L")])),
    "clear-palette.png": encoded(image().quantize(8), transparency=3),
    "cmyk.jpg": encoded(image().convert("CMYK"), "JPEG"),
    "sixteen.png": encoded(GREY_16),
    "sixteen.tif": encoded(GREY_16, "TIFF"),
    "turned.jpg": encoded(image(), "JPEG", exif=EXIF),
    "lossless.webp": encoded(image(), "WEBP", lossless=True),
    "a.bmp": encoded(image(), "BMP"),
    "a.ppm": encoded(image(), "PPM"),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_pixels_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(GOOD[name])
    assert torch.equal(decode(GOOD[name]), read_image(tmp_path / name))


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.html", content)
    return stream.getvalue()


def test_what_hides_behind_an_image_is_left_behind(client: httpx.Client) -> None:
    """Polyglots are accepted as the images that they are; nothing else of them is kept or sent back."""
    hidden = b"<script>alert('hidden in here')</script>"
    plain = encoded(image(), "JPEG")
    expected = client.post("/api/explain", content=plain).json()
    for more in (zipped(hidden), hidden):
        answer = client.post("/api/explain", content=plain + more).json()
        assert answer["classes"][0]["logit"] == expected["classes"][0]["logit"]
        assert b"hidden" not in client.get(answer["image"]["url"]).content
    noted = encoded(image(), "JPEG", comment=hidden)
    assert hidden in noted
    answer = client.post("/api/explain", content=noted).json()
    assert b"hidden" not in client.get(answer["image"]["url"]).content


def png_of(width: int, height: int, pixels: bytes) -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def bomb(side: int) -> bytes:
    """A small file that unpacks to side² black pixels."""
    pack = zlib.compressobj(9)
    rows = b"".join(pack.compress(bytes(1 + 3 * side)) for _ in range(side))
    return png_of(side, side, rows + pack.flush())


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
BAD = {
    "empty": (b"", 422, "The file is empty"),
    "text": (b"not an image" * 40, 415, "not an image"),
    "svg": (SVG, 415, "not an image"),
    "html": (b"<!doctype html><script>alert(1)</script>", 415, "not an image"),
    "zip": (zipped(b"x" * 900), 415, "not an image"),
    "zip before an image": (zipped(b"x") + encoded(image()), 415, "not an image"),
    "eps": (EPS, 415, "not an image"),
    "ico": (encoded(image(), "ICO"), 415, "not an image"),
    "pdf": (encoded(image(), "PDF"), 415, "not an image"),
    "truncated jpeg": (encoded(image(0, (400, 300)), "JPEG")[:-4000], 422, "corrupt or truncated"),
    "truncated png": (encoded(image(0, (400, 300)))[:-4000], 422, "corrupt or truncated"),
    "header only": (encoded(image())[:40], 415, "not an image"),
    "32 bits": (encoded(Image.fromarray(np.full((9, 9), 0.5, np.float32)), "TIFF"), 422, "32 bits"),
    "50.1 megapixels": (bomb(7080), 413, "more than 50 megapixels"),
    "bomb": (png_of(30_000, 30_000, zlib.compress(bytes(1000))), 413, "more than 50 megapixels"),
    "a million a side": (png_of(1_000_000, 1_000_000, zlib.compress(bytes(1000))), 413, "more than 50 megapixels"),
    "too large": (encoded(image()) + bytes(MAX_BYTES), 413, "larger than 10 MB"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_sentence(name: str, client: httpx.Client) -> None:
    content, status, words = BAD[name]
    response = client.post("/api/explain", content=content, headers={"Content-Type": "image/png"})
    assert response.status_code == status, response.text
    sentence = response.json()["detail"]
    assert words in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def endless(chunk: bytes, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield chunk


def test_a_body_without_length_is_counted_as_it_comes(client: httpx.Client) -> None:
    response = client.post("/api/explain", content=endless(bytes(2**18), 60))  # 15 MB, chunked
    assert "content-length" not in response.request.headers
    assert response.status_code == 413
    good = client.post("/api/explain", content=endless(encoded(image()), 1))
    assert good.status_code == 200


def test_a_file_of_ten_megabytes_is_read(client: httpx.Client) -> None:
    whole = encoded(image(), "JPEG")
    assert client.post("/api/explain", content=whole + bytes(MAX_BYTES - len(whole))).status_code == 200


def test_a_form_is_not_an_image(client: httpx.Client) -> None:
    response = client.post("/api/explain", files={"file": ("a.png", encoded(image()), "image/png")})
    assert response.status_code == 415


@pytest.mark.slow
def test_memory_comes_back(server: Server, client: httpx.Client) -> None:
    """After many bad files, the heaviest that are still decoded among them, the server holds what it held before."""
    heavy = bomb(6000)  # 36 megapixels, which are allowed and take 100 MB to hold
    assert client.post("/api/explain", content=heavy).status_code == 200
    bad = [content for name, (content, _, _) in BAD.items() if name != "50.1 megapixels"]
    for content in bad:
        client.post("/api/explain", content=content)
    before = server.memory()
    for _ in range(2):
        for content in (heavy, *bad, heavy[:-3000]):
            client.post("/api/explain", content=content)
    assert server.memory() < before + 60
    assert client.post("/api/explain", content=encoded(image())).status_code == 200


def test_refusals_of_the_decoder_need_no_server() -> None:
    with pytest.raises(Refusal) as found:
        decode(b"")
    assert found.value.status == 422
