"""Backbone features computed once, for every stage (and every run) that leaves the backbone as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dapl.batches.cache import open_array
from dapl.batches.sources import Features, ImageSource, grid_masks, in_order
from dapl.common.files import replacing
from dapl.common.progress import Advance
from dapl.config import BackboneConfig
from dapl.models.weight_sources import SOURCES
from dapl.processes.interface import Processes

_VERSION = 2  # raise when the same key would give other features

Allocate = Callable[[str, tuple[int, ...]], np.ndarray]


def digest(module: nn.Module) -> str:
    """Names the values of a module by their content: its weights, and buffers such as the normalisation of images."""
    hashed = hashlib.blake2b(digest_size=12)
    for name, tensor in (module.state_dict() | dict(module.named_buffers())).items():
        hashed.update(name.encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def features_key(pixels: str, values: str, backbone: BackboneConfig, views: int, precision: str) -> str:
    """Names features by all that decides them.

    ``pixels`` is the key of the images, ``values`` the `digest` of the backbone. The same values may belong to
    another network, with other paddings, so its name counts too.
    """
    stages = sorted(stage for stage in backbone.stages if stage != "head") + ["head"] * ("head" in backbone.stages)
    network = f"{backbone.name}/{stages}{'/balanced' * backbone.balance}{'' if backbone.fuse else '/apart'}"
    if backbone.weights in SOURCES:  # decides paddings too
        network += f"/{backbone.weights}"
    text = f"{_VERSION}/{pixels}/{values}/{network}/{views}/{precision}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def compute_features(
    backbone: nn.Module,
    source: ImageSource,
    views: int,
    batch_size: int,
    processes: Processes,
    advance: Advance,
    allocate: Allocate = lambda name, shape: np.empty(shape, np.float32),
) -> Features:
    """Pass every image of ``source`` (and, for a second view, its mirror image) through the backbone."""
    backbone.eval()
    values = masks = None
    with torch.inference_mode():
        for batch in source.batches(in_order(len(source), batch_size)):
            rows = batch.indices.numpy()
            for view in range(views):
                images, pixel_masks = _view(batch.images, view), _view(batch.masks, view)
                assert images is not None
                with processes.autocast():
                    maps = backbone(images.to(processes.device)).float().cpu()
                if values is None:
                    values = allocate("features", (len(source), views, *maps.shape[1:]))
                if pixel_masks is not None:
                    if masks is None:
                        masks = allocate("grid", (len(source), views, *maps.shape[2:]))
                    masks[rows, view] = grid_masks(pixel_masks, maps.shape[2:]).numpy()
                values[rows, view] = maps.numpy()
            advance(len(batch))
    assert values is not None
    return Features(torch.from_numpy(values), None if masks is None else torch.from_numpy(masks))


def open_features(folder: Path, key: str, has_masks: bool) -> Features | None:
    """What `write_features` left behind, if it did."""
    values, masks = folder / f"{key}-features.npy", folder / f"{key}-grid.npy"
    if not values.exists() or (has_masks and not masks.exists()):
        return None
    # Copy-on-write maps: torch wants memory that it may write to, the file stays as it is.
    grid = torch.from_numpy(open_array(masks, "c", np.float32)) if has_masks else None
    return Features(torch.from_numpy(open_array(values, "c", np.float32)), grid)


def write_features(folder: Path, key: str, compute: Callable[[Allocate], Features]) -> None:
    """Run ``compute`` with arrays that are files, which get their names only when it is through."""
    arrays = []
    with ExitStack() as stack:

        def allocate(name: str, shape: tuple[int, ...]) -> np.ndarray:
            file = stack.enter_context(replacing(folder / f"{key}-{name}.npy"))
            arrays.append(np.lib.format.open_memmap(file, "w+", np.float32, shape))
            return arrays[-1]

        compute(allocate)
        for array in arrays:
            array.flush()


def _view(images: Tensor | None, view: int) -> Tensor | None:
    """View 0 is the image, view 1 its mirror image."""
    return images if images is None or view == 0 else images.flip(-1)
