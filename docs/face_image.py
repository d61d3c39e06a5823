"""Makes images/face.jpg of docs/faces.md: python docs/face_image.py, with DAPL_FACE_MODEL set.

The photograph is scikit-image's `data.astronaut()` (NASA, public domain). Everything drawn on it comes from the code
that prepares FaceForensics++.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage import data

from dapl.explain.draw import TileSheet, part_colour
from dapl.masks.faces import PARTS, FaceFinder, face_model, part_centres, part_masks
from dapl.masks.polygons import convex_hull
from dapl.masks.refine import create_refiner
from dapl.prepare.faceforensics_video import cut_out, face_mask, landmarks_in, square_around

SIZE, CAPTION, MARGIN = 320, 26, 0.15


def main() -> None:
    photograph = data.astronaut()
    with FaceFinder(face_model()) as finder:
        face = finder(photograph)[0]
    square = square_around(face, MARGIN, photograph.shape[:2])
    image, points = cut_out(photograph, square, SIZE), landmarks_in(face, square, SIZE)
    masked = face_mask(image, points, create_refiner("grabcut"))
    panels = {
        "cut out": Image.fromarray(image),
        "468 landmarks and their hull": hull_panel(image, points),
        f"mask ({masked.method})": mask_panel(image, masked.mask),
        "ten parts": parts_panel(image, points),
    }
    sheet = TileSheet(len(panels), SIZE, columns=len(panels), above=CAPTION)
    for column, (caption, panel) in enumerate(panels.items()):
        left, _ = sheet.paste(column, panel)
        sheet.draw.text((left + SIZE / 2, CAPTION / 2), caption, fill="black", anchor="mm", font=font(16))
    sheet.image.save(Path(__file__).parent / "images" / "face.jpg", quality=88)


def hull_panel(image: np.ndarray, points: np.ndarray) -> Image.Image:
    panel = Image.fromarray(image)
    draw = ImageDraw.Draw(panel)
    corners = [tuple(corner) for corner in convex_hull(points).tolist()]
    draw.line([*corners, corners[0]], fill="yellow", width=2)
    for x, y in points.tolist():
        draw.ellipse((x - 1, y - 1, x + 1, y + 1), fill="white")
    return panel


def mask_panel(image: np.ndarray, mask: np.ndarray) -> Image.Image:
    dimmed = image.copy()
    dimmed[~mask] = dimmed[~mask] // 4
    return Image.fromarray(dimmed)


def parts_panel(image: np.ndarray, points: np.ndarray) -> Image.Image:
    tinted = image.astype(np.float64)
    for part, mask in enumerate(part_masks(points, image.shape[:2])):
        tinted[mask] = 0.4 * tinted[mask] + 0.6 * np.array(part_colour(2 * part))
    panel = Image.fromarray(tinted.astype(np.uint8))
    draw = ImageDraw.Draw(panel)
    for name, (x, y) in zip(PARTS, part_centres(points).tolist(), strict=True):
        draw.text(
            (x, y),
            name.replace(" ", "\n", int("cheek" in name)),
            fill="white",
            anchor="mm",
            align="center",
            font=font(13),
            stroke_width=2,
            stroke_fill="black",
        )
    return panel


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


if __name__ == "__main__":
    main()
