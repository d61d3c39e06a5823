"""MobileSAM: every weight of the published checkpoint finds its place, and no code in a file is run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dapl.common.errors import DaplError

pytest.importorskip("transformers", reason="pip install 'dapl[masks]'")
from dapl.masks.mobile_sam import MobileSam, load_mobile_sam
from dapl.masks.refine import Prompt, create_refiner

BACK = [
    (r"^encoder\.neck\.", "image_encoder.neck."),
    (
        r"^encoder\.trunk\.stages\.(\d)\.downsample",
        lambda found: f"image_encoder.layers.{int(found[1]) - 1}.downsample",
    ),
    (r"^encoder\.trunk\.stages\.", "image_encoder.layers."),
    (r"^encoder\.trunk\.patch_embed\.conv1\.", "image_encoder.patch_embed.seq.0."),
    (r"^encoder\.trunk\.patch_embed\.conv2\.", "image_encoder.patch_embed.seq.2."),
    (r"^(image_encoder\..*)\.conv\.weight$", r"\1.c.weight"),
    (r"^sam\.", ""),
    (r"^shared_image_embedding\.positional_embedding$", "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"),
    (r"\.point_embed\.", ".point_embeddings."),
    *(
        (rf"\.mask_embed\.{name}\.", f".mask_downscaling.{n}.")
        for n, name in {0: "conv1", 1: "layer_norm1", 3: "conv2", 4: "layer_norm2", 6: "conv3"}.items()
    ),
    (r"\.upscale_conv1\.", ".output_upscaling.0."),
    (r"\.upscale_layer_norm\.", ".output_upscaling.1."),
    (r"\.upscale_conv2\.", ".output_upscaling.3."),
    (r"\.layer_norm(\d|_final_attn)\.", r".norm\1."),
    (r"(_mlps\.\d|iou_prediction_head)\.layers\.0\.", r"\1.layers.1."),
    (r"(_mlps\.\d|iou_prediction_head)\.proj_in\.", r"\1.layers.0."),
    (r"(_mlps\.\d|iou_prediction_head)\.proj_out\.", r"\1.layers.2."),
]
"""From the names here to those of the published file."""


def published_name(name: str) -> str | None:
    if name.startswith(("sam.vision_encoder.", "encoder.trunk.head.")) or ".shared_embedding." in name:
        return None
    for pattern, text in BACK:
        name = re.sub(pattern, text, name)
    return name


def test_every_weight_finds_its_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MobileSam()
    state = {name: value for name, value in model.state_dict().items() if published_name(name) is not None}
    published = {published_name(name): value for name, value in state.items()}
    assert len(published) == len(state)
    published |= {"image_encoder.norm_head.weight": torch.zeros(320), "image_encoder.head.bias": torch.zeros(1000)}
    assert {"image_encoder.layers.2.downsample.conv3.c.weight", "mask_decoder.transformer.norm_final_attn.bias"} <= set(
        published
    )
    torch.save(published, tmp_path / "mobile_sam.pt")
    loaded, processor = load_mobile_sam(tmp_path / "mobile_sam.pt")
    for name, value in state.items():
        torch.testing.assert_close(loaded.state_dict()[name], value, msg=name)
    assert processor.image_processor.size["longest_edge"] == 1024
    del published["image_encoder.neck.0.weight"]
    torch.save(published, tmp_path / "less.pt")
    with pytest.raises(DaplError, match=r"less\.pt: is no checkpoint of MobileSAM"):
        load_mobile_sam(tmp_path / "less.pt")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"image_encoder.neck.0.weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DaplError, match="is no checkpoint of MobileSAM"):
        create_refiner("sam", str(tmp_path / "evil.pt"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_birds_in_their_boxes() -> None:
    """The whole measurement is `python docs/render_masks.py measure`."""
    if not os.environ.get("DAPL_MOBILE_SAM") or "DAPL_CUB" not in os.environ:
        pytest.skip("DAPL_MOBILE_SAM (mobile_sam.pt) and DAPL_CUB are not set")
    sam, root, ious = create_refiner("sam", os.environ["DAPL_MOBILE_SAM"]), Path(os.environ["DAPL_CUB"]), []
    for file in sorted((root / "segmentations").glob("*/*.png"))[100::3000]:
        true = np.asarray(Image.open(file).convert("L")) >= 128
        rows, columns = np.nonzero(true)
        box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        image = Image.open(root / "images" / file.parent.name / f"{file.stem}.jpg").convert("RGB")
        found = sam(np.asarray(image), Prompt(box=tuple(float(side) for side in box)))
        ious.append((true & found).sum() / (true | found).sum())
    assert np.mean(ious) > 0.8
