"""Data and models that stand for published ones: a tiny CUB, videos in FaceForensics++'s layout, a tiny SAM."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

TINY_CLASSES = ("001.Red_Finch", "002.Green_Finch", "003.Blue_Owl", "004.Grey_Owl")
TINY_COLOURS = ((200, 40, 40), (40, 170, 60), (50, 80, 210), (120, 120, 120))
TINY_PARTS = ("beak", "left eye", "belly", "tail")
TINY_IMAGES = 6
"""Per class; the first four are for training."""


@pytest.fixture(scope="session")
def write_video() -> Callable[..., None]:
    """A function that writes frames (uint8 H×W×3 each, even sides) as an H.264 video, its index first."""
    av = pytest.importorskip("av")

    def write(path: Path, frames: list[np.ndarray], rate: int = 10) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
            stream = container.add_stream("libx264", rate=rate, options={"crf": "18", "g": "4"})
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
            container.mux(stream.encode(None))

    return write


FACE_SPLITS = {"train": [["000", "001"]], "val": [["002", "003"]], "test": [["004", "005"]]}


@pytest.fixture(scope="session")
def face_videos(made_once: Callable[..., Path], write_video: Callable[..., None]) -> Path:
    """FaceForensics++'s layout with 30 short videos of one photograph, other per identity and per manipulation.

    Shared by all tests: copy it before you change it.
    """
    from skimage.data import astronaut

    photograph = Image.fromarray(astronaut()).crop((110, 20, 350, 230))
    tints = {
        "original_sequences/youtube": (1.0, 1.0, 1.0),
        "manipulated_sequences/Deepfakes": (1.0, 0.8, 0.8),
        "manipulated_sequences/Face2Face": (0.8, 1.0, 0.8),
        "manipulated_sequences/FaceSwap": (0.8, 0.8, 1.0),
        "manipulated_sequences/NeuralTextures": (0.7, 0.9, 1.0),
    }

    def make(root: Path) -> None:
        (root / "splits").mkdir()
        for split, pairs in FACE_SPLITS.items():
            (root / "splits" / f"{split}.json").write_text(json.dumps(pairs))
            for pair in pairs:
                for target, source in (pair, pair[::-1]):
                    for above, tint in tints.items():
                        name = target if above.startswith("original") else f"{target}_{source}"
                        turn = (int(target) - 2.5) * (3 if above.startswith("original") else 2)
                        frames = [
                            (np.asarray(photograph.rotate(turn, translate=(shift, 0))) * tint).astype(np.uint8)
                            for shift in range(-9, 9, 3)
                        ]
                        write_video(root / above / "c23" / "videos" / f"{name}.mp4", frames)

    return made_once("FaceForensics++", make)


@pytest.fixture(scope="session")
def prepared_faces(face_videos: Path, face_model: Path, made_once: Callable[..., Path]) -> tuple[Path, str]:
    """The videos as `dapl prepare faceforensics` leaves them, and what it said. Copy them before you change them."""
    from dapl.cli import main

    def make(folder: Path) -> None:
        said = io.StringIO()
        options = ["--frames", "3", "--size", "96", "--face-model", str(face_model), "--quiet"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            assert main(["prepare", "faceforensics", str(face_videos), str(folder / "out"), *options]) == 0
        (folder / "said.txt").write_text(said.getvalue(), encoding="utf-8")

    folder = made_once("faces", make)
    return folder / "out", (folder / "said.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_sam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SamModel with random weights and its processor, saved as the hub lays them out."""
    import dapl.common.operators  # noqa: F401  (before transformers)

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    layers = {"hidden_size": 16, "mlp_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    patches = {"image_size": 64, "patch_size": 8}
    windows = {"output_channels": 16, "num_pos_feats": 8, "global_attn_indexes": [0], "window_size": 4}
    config = transformers.SamConfig(
        vision_config=layers | patches | windows,
        prompt_encoder_config=patches | {"hidden_size": 16, "mask_input_channels": 16},
        mask_decoder_config=layers | {"iou_head_hidden_dim": 16},
    )
    folder = tmp_path_factory.mktemp("sam")
    model = transformers.SamModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)  # as they are initialised, nothing would come through so few layers
    model.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}}
    transformers.SamProcessor(transformers.SamImageProcessor(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_cub(tmp_path: Path) -> Path:
    """4 classes × 6 drawn birds in the published layout, made anew for each test, so that a test may break it."""
    root = tmp_path / "CUB_200_2011"
    (root / "parts").mkdir(parents=True)
    tables: dict[str, list[str]] = {
        "classes.txt": [f"{number} {name}" for number, name in enumerate(TINY_CLASSES, 1)],
        "parts/parts.txt": [f"{number} {name}" for number, name in enumerate(TINY_PARTS, 1)],
    }
    generator = np.random.default_rng(0)
    for label, name in enumerate(TINY_CLASSES):
        (root / "images" / name).mkdir(parents=True)
        (root / "segmentations" / name).mkdir(parents=True)
        for number in range(TINY_IMAGES):
            image_id = label * TINY_IMAGES + number + 1
            path = f"{name}/Bird_{number:04}_{image_id}.jpg"
            box, points = _draw_bird(root, path, TINY_COLOURS[label], generator)
            x1, y1, x2, y2 = box
            rows = {
                "images.txt": [f"{image_id} {path}"],
                "image_class_labels.txt": [f"{image_id} {label + 1}"],
                "train_test_split.txt": [f"{image_id} {int(number < 4)}"],
                "bounding_boxes.txt": [f"{image_id} {x1:.1f} {y1:.1f} {x2 - x1:.1f} {y2 - y1:.1f}"],
                "parts/part_locs.txt": [
                    # the tail of every third bird is hidden
                    f"{image_id} {part} 0.0 0.0 0" if part == 4 and number % 3 == 0 else f"{image_id} {part} {x} {y} 1"
                    for part, (x, y) in enumerate(points, 1)
                ],
            }
            for file, lines in rows.items():
                tables.setdefault(file, []).extend(lines)
    for file, lines in tables.items():
        (root / file).write_text("\n".join(lines) + "\n")
    return root


def _draw_bird(
    root: Path, path: str, colour: tuple[int, int, int], generator: np.random.Generator
) -> tuple[tuple[float, float, float, float], list[tuple[float, float]]]:
    """A body, a head and a beak on noise; returns the box (XYXY) and a point for each of TINY_PARTS."""
    width, height = (int(side) for side in generator.integers(60, 100, size=2))
    noise = generator.integers(150, 255, size=(height, width, 3), dtype=np.uint8)
    image, mask = Image.fromarray(noise), Image.new("L", (width, height), 0)
    x, y, r = width * 0.5, height * 0.55, min(width, height) * 0.2
    shapes = (
        ("ellipse", (x - 1.5 * r, y - r, x + r, y + r), colour, 255),
        ("ellipse", (x + 0.4 * r, y - 1.6 * r, x + 1.6 * r, y - 0.4 * r), colour, 204),
        ("rectangle", (x + 1.5 * r, y - 1.1 * r, x + 2.1 * r, y - 0.9 * r), (240, 180, 0), 153),
    )
    for shape, corners, ink, graded in shapes:
        getattr(ImageDraw.Draw(image), shape)(corners, fill=ink)
        getattr(ImageDraw.Draw(mask), shape)(corners, fill=graded)
    image.save(root / "images" / path, quality=95)
    mask.save(root / "segmentations" / Path(path).with_suffix(".png"))
    points = [(x + 1.8 * r, y - r), (x + 1.1 * r, y - 1.1 * r), (x - 0.2 * r, y), (x - 1.3 * r, y)]
    return (x - 1.5 * r, y - 1.6 * r, x + 2.1 * r, y + r), [(round(a, 1), round(b, 1)) for a, b in points]
