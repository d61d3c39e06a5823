"""Backbone features computed once, for every stage (and every run) that leaves the backbone as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dapl.batches.cache import flush, new_array, open_array
from dapl.batches.sources import (
    Features,
    ImageSource,
    ImagesWithFeatures,
    company,
    filled,
    finest_grid,
    grid_masks,
    in_order,
)
from dapl.common.errors import DaplError
from dapl.common.files import mark_as_cache, replacing
from dapl.common.progress import Advance
from dapl.config import BackboneConfig
from dapl.models.contract import map_features
from dapl.models.weight_sources import SOURCES
from dapl.processes.interface import Processes

_VERSION = 2  # raise when the same key would give other features

Allocate = Callable[[str, tuple[int, ...], type], np.ndarray]
"""From name, shape and type of numbers to an array, in memory or in a file."""


def digest(module: nn.Module) -> str:
    """Names the values of a module by their content: its weights, and buffers such as the normalisation of images."""
    # What is no tensor but decides what it gives is in the text.
    return digest_of(module.state_dict() | dict(module.named_buffers()), module.extra_repr())


def digest_of(tensors: Mapping[str, Tensor], said: str = "") -> str:
    """Names tensors by their names and content, and a text.

    >>> digest_of({"a": torch.zeros(2)}) == digest_of({"a": torch.ones(2)})
    False
    """
    hashed = hashlib.blake2b(digest_size=12)
    hashed.update(said.encode())
    for name, tensor in tensors.items():
        hashed.update(name.encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def features_key(
    pixels: str, values: str, backbone: BackboneConfig, views: int, precision: str, half: bool = False
) -> str:
    """Names features by all that decides them; ``half`` says that they are kept as float16.

    ``pixels`` is the key of the images, ``values`` the `digest` of the backbone. The same values may belong to
    another network, with other paddings, so its name counts too.
    """
    stages = sorted(stage for stage in backbone.stages if stage != "head") + ["head"] * ("head" in backbone.stages)
    network = f"{backbone.name}/{stages}{'/balanced' * backbone.balance}{'' if backbone.fuse else '/apart'}"
    if backbone.weights in SOURCES:  # decides paddings too
        network += f"/{backbone.weights}"
    text = f"{_VERSION}/{pixels}/{values}/{network}/{views}/{precision}{'/half' * half}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def compute_features(
    extractor: nn.Module,
    source: ImageSource | ImagesWithFeatures,
    views: int,
    batch_size: int,
    processes: Processes,
    advance: Advance,
    half: bool = False,
    allocate: Allocate = lambda name, shape, kind: np.empty(shape, kind),
) -> Features:
    """Pass every image of ``source`` (and, for a second view, its mirror image) through the extractor.

    Features that the source has beside its images are those of the overview: the extractor does not make them again.
    Each tensor that it gives has an array of its own; with ``half`` it is rounded to float16.
    """
    extractor.eval()
    kind = np.float16 if half else np.float32
    arrays: list[np.ndarray] = []
    masks: np.ndarray | None = None
    several = False
    with torch.inference_mode():
        size = company(batch_size, processes.device)
        for batch in source.batches(filled(in_order(len(source), size), size)):
            rows = batch.indices.numpy()
            for view in range(views):
                images, pixel_masks = _view(batch.images, view), _view(batch.masks, view)
                assert images is not None
                known = () if batch.features is None or view else (batch.to(processes.device).features,)
                with processes.autocast():
                    given = map_features(lambda one: one.float().cpu(), extractor(images.to(processes.device), *known))
                several = isinstance(given, tuple)
                tensors = given if several else (given,)
                if not arrays:
                    names = _array_names(len(tensors) if several else None)
                    shapes = [(len(source), views, *one.shape[1:]) for one in tensors]
                    arrays = [allocate(name, shape, kind) for name, shape in zip(names, shapes, strict=True)]
                for array, tensor in zip(arrays, tensors, strict=True):
                    array[rows, view] = _fitting_half(tensor) if half else tensor.numpy()
                if pixel_masks is not None:
                    grid = finest_grid(given)
                    if masks is None:
                        masks = allocate("grid", (len(source), views, *grid), np.float32)
                    masks[rows, view] = grid_masks(pixel_masks, grid).numpy()
            advance(len(batch.indices.unique()))
    values = tuple(map(torch.from_numpy, arrays)) if several else torch.from_numpy(arrays[0])
    return Features(values, None if masks is None else torch.from_numpy(masks))


def _array_names(count: int | None) -> list[str]:
    """The names of the arrays of a tuple of features; of a single tensor where ``count`` is None."""
    return ["features"] if count is None else [f"features-{number + 1}-of-{count}" for number in range(count)]


def _fitting_half(tensor: Tensor) -> np.ndarray:
    rounded = tensor.half()
    if not rounded.isfinite().all():
        raise DaplError(
            "cache.feature_type: some features are larger than float16 can hold (65,504); set it to float32."
        )
    return rounded.numpy()


def open_features(folder: Path, key: str, has_masks: bool, half: bool = False) -> Features | None:
    """What `write_features` left behind, if it did."""
    count = next((int(path.stem.rsplit("-", 1)[1]) for path in folder.glob(f"{key}-features-1-of-*.npy")), None)
    files, masks = [folder / f"{key}-{name}.npy" for name in _array_names(count)], folder / f"{key}-grid.npy"
    if not all(file.exists() for file in files) or (has_masks and not masks.exists()):
        return None
    # Copy-on-write maps: torch wants memory that it may write to, the file stays as it is.
    grid = torch.from_numpy(open_array(masks, "c", np.float32)) if has_masks else None
    kind = np.float16 if half else np.float32
    values = tuple(torch.from_numpy(open_array(file, "c", kind)) for file in files)
    return Features(values[0] if count is None else values, grid)


def write_features(folder: Path, key: str, compute: Callable[[Allocate], Features]) -> None:
    """Run ``compute`` with arrays that are files, which get their names only when it is through."""
    mark_as_cache(folder)
    arrays: list[np.ndarray] = []
    with ExitStack() as stack:

        def allocate(name: str, shape: tuple[int, ...], kind: type) -> np.ndarray:
            file = stack.enter_context(replacing(folder / f"{key}-{name}.npy"))
            arrays.append(new_array(file, kind, shape))
            return arrays[-1]

        compute(allocate)
        flush(*arrays)


def _view(images: Tensor | None, view: int) -> Tensor | None:
    """View 0 is the image, view 1 its mirror image."""
    return images if images is None or view == 0 else images.flip(-1)
