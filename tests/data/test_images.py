"""Files as they come: every way to save an image is read as the same RGB, every broken file is named."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from dapl.common.errors import DaplError
from dapl.data.images import read_image, read_mask

IMAGE = np.zeros((6, 9, 3), dtype=np.uint8)
IMAGE[:3, :4] = (200, 30, 60)
IMAGE[3:] = (10, 120, 240)


def png(pixels: np.ndarray, width: int | None = None, height: int | None = None) -> bytes:
    """A PNG of 16-bit grey (H×W) or RGB (H×W×3), which Pillow does not write; the header may lie about the size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows, columns = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width or columns, height or rows, 16, colour, 0, 0, 0)
    scanlines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(scanlines)) + chunk(b"IEND", b"")
    )


def saved(image: Image.Image, path: Path, **options: Any) -> Path:
    image.save(path, **options)
    return path


def pixels(path: Path) -> np.ndarray:
    image = read_image(path)
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    return image.permute(1, 2, 0).numpy()


def test_rgb_png(tmp_path: Path) -> None:
    assert np.array_equal(pixels(saved(Image.fromarray(IMAGE), tmp_path / "a.png")), IMAGE)


@pytest.mark.parametrize("mode", ["L", "1", "P", "YCbCr", "CMYK"])
def test_other_modes(tmp_path: Path, mode: str) -> None:
    source = Image.fromarray(IMAGE).convert(mode)
    path = saved(source, tmp_path / ("a.png" if mode in "L1P" else "a.tif"))
    assert np.array_equal(pixels(path), np.array(source.convert("RGB")))


@pytest.mark.parametrize(("ink", "rgb"), [((0, 255, 255, 0), (255, 0, 0)), ((0, 0, 0, 255), (0, 0, 0))])
def test_cmyk_jpeg_is_not_inverted(tmp_path: Path, ink: tuple[int, ...], rgb: tuple[int, ...]) -> None:
    path = saved(Image.new("CMYK", (16, 16), ink), tmp_path / "a.jpg", quality=95)
    assert b"Adobe" in path.read_bytes()  # the marker that says: inverted
    assert np.abs(pixels(path).astype(int) - rgb).max() <= 3


def test_alpha_is_composited_on_white(tmp_path: Path) -> None:
    rgba = np.dstack([IMAGE, np.full((6, 9), 255, np.uint8)])
    rgba[0, 0] = (9, 9, 9, 0)
    rgba[0, 1] = (100, 0, 0, 128)
    got = pixels(saved(Image.fromarray(rgba), tmp_path / "a.png"))
    assert got[0, 0].tolist() == [255, 255, 255]
    assert np.abs(got[0, 1].astype(int) - [177, 127, 127]).max() <= 1
    assert np.array_equal(got[1:], IMAGE[1:])


def test_transparent_palette_and_grey(tmp_path: Path) -> None:
    palette = Image.fromarray(IMAGE).quantize(4)
    clear = palette.getpixel((8, 0))
    got = pixels(saved(palette, tmp_path / "a.png", transparency=clear))
    assert got[0, 8].tolist() == [255, 255, 255]
    assert np.abs(got[5, 5].astype(int) - IMAGE[5, 5]).max() <= 8
    grey = Image.merge("LA", [Image.new("L", (4, 4), 50), Image.new("L", (4, 4), 0)])
    assert pixels(saved(grey, tmp_path / "b.png")).min() == 255


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    expected = np.round(values / 257).astype(np.uint8)
    for name in ("a.png", "a.tif"):
        got = pixels(saved(Image.fromarray(values), tmp_path / name))
        assert np.array_equal(got, np.dstack([expected] * 3))


def test_16_bit_rgb(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(IMAGE.astype(np.uint16) * 257))
    assert np.array_equal(pixels(path), IMAGE)


def test_32_bit_is_refused(tmp_path: Path) -> None:
    path = saved(Image.fromarray(np.full((4, 4), 0.5, np.float32)), tmp_path / "a.tif")
    with pytest.raises(DaplError, match=r"a\.tif.*32 bits.*8 or 16"):
        read_image(path)
    path = saved(Image.fromarray(np.full((4, 4), 70000, np.int32)), tmp_path / "b.tif")
    with pytest.raises(DaplError, match=r"b\.tif.*32 bits"):
        read_mask(path)


# EXIF 2.3, tag 0x0112: where the first row and the first column of the stored pixels belong in the upright image
ORIENTATIONS = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str) -> None:
    stored = np.zeros((32, 48), np.uint8)
    stored[:8] += 80  # first row
    stored[:, :8] += 160  # first column
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
    path = saved(Image.fromarray(stored), tmp_path / f"a.{suffix}", exif=exif, **options)
    upright = read_image(path)[0].float()
    sides = {"top": upright[1], "bottom": upright[-2], "left": upright[:, 1], "right": upright[:, -2]}
    row, column = ORIENTATIONS[orientation]
    assert sides[row].median() == pytest.approx(80, abs=6)
    assert sides[column].median() == pytest.approx(160, abs=6)
    assert upright.shape == ((32, 48) if orientation < 5 else (48, 32))
    assert torch.equal(read_mask(path, size=tuple(upright.shape)), (upright >= 128).to(torch.uint8))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_hide_the_image(tmp_path: Path) -> None:
    path = saved(Image.fromarray(IMAGE), tmp_path / "a.jpg", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xffrubbish")
    assert pixels(path).shape == IMAGE.shape


def test_broken_files_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)
    whole = {
        suffix: saved(Image.fromarray(noise), tmp_path / f"whole.{suffix}").read_bytes() for suffix in ("jpg", "png")
    }
    cases = {
        "empty.jpg": (b"", "is empty"),
        "text.jpg": (b"not an image at all", "not an image"),
        "cut.jpg": (whole["jpg"][: len(whole["jpg"]) // 2], "corrupt or truncated"),
        "cut.png": (whole["png"][: len(whole["png"]) // 2], "corrupt or truncated"),
        "head.jpg": (whole["jpg"][:40], "corrupt|truncated|not an image"),
        "noise.png": (whole["png"][:200] + bytes(500) + whole["png"][700:], "corrupt"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        for read in (read_image, read_mask):
            with pytest.raises(DaplError, match=message) as caught:
                read(tmp_path / name)
            assert str(tmp_path / name) in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"nowhere\.jpg: no such file"):
        read_image(tmp_path / "nowhere.jpg")
    with pytest.raises(DaplError, match="is a folder"):
        read_image(tmp_path)


@pytest.mark.parametrize(("width", "height"), [(8000, 7000), (30000, 30000)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bomb(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(np.zeros((2, 2), np.uint16), width, height))
    with pytest.raises(DaplError, match=r"bomb\.png.*pixels.*scale it down"):
        read_image(path)


def test_limit_is_a_parameter(tmp_path: Path) -> None:
    path = saved(Image.fromarray(IMAGE), tmp_path / "a.png")
    assert read_image(path, max_pixels=54).shape == (3, 6, 9)
    with pytest.raises(DaplError, match="9×6 pixels are more than the limit of 53"):
        read_image(path, max_pixels=53)


def test_pillow_is_left_as_it_was(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    read_image(saved(Image.fromarray(IMAGE), tmp_path / "a.png"))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_graded_mask(tmp_path: Path) -> None:
    grades = np.array([[0, 51, 102, 127, 128, 153, 204, 255]], np.uint8)
    mask = read_mask(saved(Image.fromarray(grades), tmp_path / "a.png"))
    assert mask.dtype == torch.uint8
    assert mask.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    wide = read_mask(saved(Image.fromarray(grades.astype(np.uint16) * 257), tmp_path / "b.png"))
    assert wide.tolist() == mask.tolist()


def test_mask_of_one_bit_of_zeros_and_ones_or_with_alpha(tmp_path: Path) -> None:
    inside = np.zeros((5, 7), bool)
    inside[1:3, 2:6] = True
    grey = Image.fromarray(inside.astype(np.uint8) * 255)
    clear = Image.new("L", grey.size, 0)
    ways = [
        Image.fromarray(inside),
        Image.fromarray(inside.astype(np.uint8)),
        Image.fromarray(inside.astype(np.uint16)),
        grey,
        grey.convert("P"),
        Image.merge("LA", [grey, clear]),
        Image.merge("RGBA", [grey, grey, grey, clear]),
    ]
    for number, way in enumerate(ways):
        mask = read_mask(saved(way, tmp_path / f"{number}.png"), size=(5, 7))
        assert mask.numpy().astype(bool).tolist() == inside.tolist(), way.mode
        assert int(mask.max()) == 1


def test_empty_and_full_masks(tmp_path: Path) -> None:
    assert read_mask(saved(Image.new("L", (3, 2), 0), tmp_path / "a.png")).sum() == 0
    assert read_mask(saved(Image.new("L", (3, 2), 255), tmp_path / "b.png")).sum() == 6


def test_mask_of_another_size(tmp_path: Path) -> None:
    path = saved(Image.new("L", (7, 5)), tmp_path / "mask.png")
    with pytest.raises(DaplError, match=r"mask\.png: the mask is 7×5 pixels, but its image bird\.jpg is 5×7"):
        read_mask(path, size=(7, 5), image_path="bird.jpg")
