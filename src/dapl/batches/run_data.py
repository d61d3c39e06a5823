"""The data of a run: cached features where the backbone stays as it is, images where it does not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dapl.batches.cache import GB, make_room, mark_used
from dapl.batches.features import compute_features, digest, features_key, open_features, write_features
from dapl.batches.pixels import (
    CompactPixels,
    Pixels,
    base_rows,
    compact_bytes,
    compact_files,
    load_compact,
    load_pixels,
    pixels_bytes,
    pixels_key,
)
from dapl.batches.sources import BatchSource, Features, FeatureSource, ImageSource, ImagesWithFeatures
from dapl.common.errors import DaplError, WriteError
from dapl.common.files import expand_path
from dapl.common.progress import Reporter
from dapl.config import Config, WarmUpStage
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Splits
from dapl.data.transforms import Augmentation
from dapl.models.contract import PrototypeModel, map_features
from dapl.processes.interface import Processes

Split = Literal["train", "validation", "test"]
Form = Literal["pixels", "compact", "none"]
"""How images are kept."""
_FORMS: tuple[Form, ...] = ("pixels", "compact", "none")
_WARNINGS_SHOWN = 5


class RunData:
    """The data of a run, read in the cheapest way that gives the same numbers."""

    def __init__(self, config: Config, processes: Processes, reporter: Reporter, splits: Splits | None = None) -> None:
        """Files whose data is bad say so here, before anything is trained."""
        self.config = config
        self.processes = processes
        self.reporter = reporter
        self.splits = splits or build_splits(config.data)
        self._tell_what_was_left_out()
        self.folder = expand_path(config.cache.folder, "cache.folder")
        if (named := config.cache.take_named()) is not None:
            reporter.line(
                f"cache.folder: {named} holds no caches of this machine, so {self.folder} is used; "
                "--cache.folder names another."
            )
        self._pixels: dict[str, Pixels | CompactPixels | None] = {}
        self._forms: dict[str, Form] = {}
        self._said: set[str] = set()
        self._used: set[str] = set()
        """Keys of the caches of this run, which make no room for each other."""
        self._said_why_without = False
        self._in_memory: tuple[str, Features] | None = None
        self.shared: set[str] = set()
        """Digests of extractors that other runs, or later stages, have too: their features are kept on disk."""

    @classmethod
    def of_model(
        cls,
        config: Config,
        model: PrototypeModel,
        classes: Sequence[str],
        split: Split,
        processes: Processes,
        reporter: Reporter,
        splits: Splits | None = None,
    ) -> RunData:
        """To read ``split`` with a trained model: that goes to the device, and its features are kept on disk.

        ``classes`` are the model's; data with others is refused.
        """
        run_data = cls(config, processes, reporter, splits)
        found = list(run_data.dataset(split).classes)
        if found != list(classes):
            raise DaplError(
                f"data: the {split} split has {len(found)} classes that are not the {len(classes)} of the run, or in "
                "another order; give data with the same classes."
            )
        model.to(processes.device)
        run_data.share(model.extractor)
        return run_data

    def _tell_what_was_left_out(self) -> None:
        """Data sets go on without what they cannot use; each says so once, however many splits show it."""
        shown = {id(base): base for base, _ in map(base_rows, vars(self.splits).values())}
        lines = [line for base in shown.values() for line in getattr(base, "warnings", ())]
        for line in lines[:_WARNINGS_SHOWN]:
            self.reporter.line(f"data: {line}")
        if len(lines) > _WARNINGS_SHOWN:
            self.reporter.line(f"data: and {len(lines) - _WARNINGS_SHOWN} more; `dapl prepare check` lists them all")

    def dataset(self, split: Split) -> Dataset:
        return getattr(self.splits, split)

    def images(self, split: Split, kind: Augmentation = "none") -> ImageSource:
        """The split as images, changed at random by ``kind``."""
        dataset = self.dataset(split)
        data = self.config.data
        pixels = self._load_pixels(dataset)
        return ImageSource(dataset, pixels, data.image_size, data.fit, kind, self._workers(kind, pixels))

    def pixel_masks(self, split: Split, indices: Tensor) -> Tensor | None:
        """Foreground in pixels of some images of the split: uint8 B×S×S, or None where there are no masks."""
        source = self.images(split)
        masks = [source[int(index), 0][1] for index in indices]
        return torch.stack(masks) if masks and masks[0].numel() else None

    def share(self, extractor: nn.Module) -> None:
        """Keep the features of this extractor, as it is now, on disk."""
        self.shared.add(digest(extractor))

    def source(
        self,
        split: Split,
        model: PrototypeModel,
        kind: Augmentation = "none",
        extractor: nn.Module | None = None,
        both: bool = False,
    ) -> BatchSource:
        """The split for a stage that leaves the extractor as it is: features where they can be had, else images.

        ``extractor``: another one than the model's; ``both``: with the features of the mirror images, where cached.
        """
        views = {"none": 1, "flip": 2}.get(kind)
        if views is None or not self.config.cache.features:
            return self.images(split, kind)
        looks_twice = extractor is None and model.overview is not model.extractor
        overview = model.overview if looks_twice else None
        features = self._features(split, extractor or model.extractor, views, overview)
        if features is None:
            return self.images(split, kind)
        dataset = self.dataset(split)
        _, rows = base_rows(dataset)
        return FeatureSource(features, rows, dataset.labels, views, both)

    def shown(self, split: Split, model: PrototypeModel) -> BatchSource:
        """The split as images to be shown, with the features that an earlier pass has kept of them.

        Where none are kept, nothing is computed for it: a few images are seldom worth a pass over all of them.
        """
        images = self.images(split)
        if not self.config.cache.features:
            return images
        features = self._kept_features(split, self._feature_keys(split, digest(model.extractor), 1))
        if features is None:
            return images
        return ImagesWithFeatures(images, FeatureSource(features, images.rows, images.labels.tolist(), views=1))

    def _feature_keys(self, split: Split, weights: str, views: int) -> list[str]:
        """The names that features of so many views may have: those of both views hold those of the one."""
        base, _ = base_rows(self.dataset(split))
        pixels = pixels_key(base, self.config.data.image_size, self.config.data.fit)
        pixels += "/compact" * (self._form(base) == "compact")
        backbone, precision = self.config.model.backbone, self.config.runtime.precision
        return [features_key(pixels, weights, backbone, count, precision, self._half) for count in range(views, 3)]

    def _kept_features(self, split: Split, keys: Sequence[str]) -> Features | None:
        """Those of one of these names, where an earlier run or stage has left them."""
        base, _ = base_rows(self.dataset(split))
        opened = (open_features(self.folder, key, base.has_masks, self._half) for key in keys)
        return next((features for features in opened if features is not None), None)

    def _features(
        self, split: Split, extractor: nn.Module, views: int, overview: nn.Module | None = None
    ) -> Features | None:
        base, _ = base_rows(self.dataset(split))
        weights = digest(extractor)
        # Features of both views are made at once where a later stage wants both.
        views = max(views, self._views_of_schedule(split))
        keys = self._feature_keys(split, weights, views)
        if self._in_memory is not None and self._in_memory[0] in keys:
            return self._in_memory[1]
        on_disk = weights in self.shared
        found = self._kept_features(split, keys) if on_disk else None
        # One process may look before another has written the file, the other after: only together they may go on.
        if not self._any(found is None):
            for key in keys:
                mark_used(self.folder, key)
            self._used.update(keys)
            return found
        size = self._size_gb(extractor, base, views)
        if size > self.config.cache.limit_gb:
            self._say_once(
                f"features: {size:.1f} GB are more than cache.limit_gb, {self.config.cache.limit_gb:g}, so every epoch "
                "passes its images through the backbone"
            )
            return None
        if not on_disk and self.processes.world_size > 1:
            return None  # each process reads its own share of the images instead of all of them
        if on_disk and self._any(not self._makes_room(keys[0], size * GB)):
            self._say_once(
                f"features: {size:.1f} GB do not fit beside the other caches of this run into cache.total_gb, "
                f"{self.config.cache.total_gb:g}, so every epoch passes its images through the backbone"
            )
            return None
        return self._make_features(base, extractor, views, keys[0], on_disk, self._overview_features(split, overview))

    def _overview_features(self, split: Split, overview: nn.Module | None) -> Features | None:
        """What the heads located by, where it is kept to the last bit, so that it need not be made again."""
        if overview is None or self._half:
            return None
        return self._kept_features(split, self._feature_keys(split, digest(overview), 1))

    def _make_features(
        self, base: Dataset, extractor: nn.Module, views: int, key: str, on_disk: bool, known: Features | None
    ) -> Features | None:
        data = self.config.data
        pixels = self._load_pixels(base)
        source: ImageSource | ImagesWithFeatures
        source = ImageSource(base, pixels, data.image_size, data.fit, "none", self._workers("none", pixels))
        if known is not None:
            source = ImagesWithFeatures(source, FeatureSource(known, range(len(base)), base.labels, views=1))

        def compute(*allocate) -> Features:
            size = self.config.runtime.evaluation_batch
            with self.reporter.track("features", len(source)) as advance:
                return compute_features(extractor, source, views, size, self.processes, advance, self._half, *allocate)

        if on_disk:
            written = True
            if self.processes.local_rank == 0:
                try:
                    write_features(self.folder, key, compute)
                except WriteError as error:
                    written = False
                    self.say_why_without(error)
            if not self._any(not written):
                return open_features(self.folder, key, base.has_masks, self._half)
            if self.processes.world_size > 1:
                return None
        self._in_memory = None  # let the old ones go first
        features = compute()
        self._in_memory = key, features
        return features

    def say_why_without(self, error: WriteError) -> None:
        """A cache is a matter of time: where it cannot be written, the run goes on without, and says so once."""
        if not self._said_why_without:
            self._said_why_without = True
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
            self.reporter.line(
                f"cache.folder: {self.folder} cannot be written ({reason or error}); going on without this cache, "
                "which takes longer. Free some space, or name another folder with --cache.folder."
            )

    @property
    def _half(self) -> bool:
        return self.config.cache.feature_type == "float16"

    def _views_of_schedule(self, split: Split) -> int:
        """How many views of the training images the stages want that leave the extractor as it is."""
        stages = [stage for stage in self.config.schedule if isinstance(stage, WarmUpStage)]
        return 2 if split != "test" and any(stage.augment == "flip" for stage in stages) else 1

    def _any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.processes.gather(torch.tensor(flag, device=self.processes.device)).any())

    def _size_gb(self, extractor: nn.Module, base: Dataset, views: int) -> float:
        size = self.config.data.image_size
        with torch.inference_mode():
            extractor.eval()
            given = extractor(torch.zeros(1, 3, size, size, device=self.processes.device))
        numbers = map_features(Tensor.numel, given)
        count = sum(numbers) if isinstance(numbers, tuple) else numbers
        return len(base) * views * count * (2 if self._half else 4) / 2**30

    def _load_pixels(self, dataset: Dataset) -> Pixels | CompactPixels | None:
        base, _ = base_rows(dataset)
        form = self._form(base)
        if form == "none":
            return None
        data = self.config.data
        key = pixels_key(base, data.image_size, data.fit)
        if key not in self._pixels:
            # One process per machine decodes, the others find the file.
            if self.processes.local_rank == 0:
                self._pixels[key] = self._open_pixels(base, form)
            self.processes.barrier()
            if self.processes.local_rank != 0:
                self._pixels[key] = self._open_pixels(base, form)
            mark_used(self.folder, key)
            self._used.add(key)
        return self._pixels[key]

    def _open_pixels(self, base: Dataset, form: Form) -> Pixels | CompactPixels | None:
        """None where they are not there and cannot be kept."""
        data, load = self.config.data, load_pixels if form == "pixels" else load_compact
        try:
            with self.reporter.track("images", len(base)) as advance:
                return load(base, data.image_size, data.fit, self.folder, self._workers("decode", None), advance)
        except WriteError as error:
            self.say_why_without(error)
            return None

    def _form(self, base: Dataset) -> Form:
        """How the images of a data set are kept, the same in every process: as pixels where there is room."""
        if not self.config.cache.pixels:
            return "none"
        key = pixels_key(base, self.config.data.image_size, self.config.data.fit)
        if key not in self._forms:
            own = _FORMS.index(self._form_with_room(base, key)) if self.processes.local_rank == 0 else 0
            found = self.processes.gather(torch.tensor(own, device=self.processes.device)).max()
            self._forms[key] = _FORMS[int(found)]
        return self._forms[key]

    def _form_with_room(self, base: Dataset, key: str) -> Form:
        """Makes the room that is needed, and says so where that is not possible."""
        data, limit = self.config.data, self.config.cache.total_gb
        if (self.folder / f"{key}-images.npy").exists():
            return "pixels"
        if all(file.exists() for file in compact_files(self.folder, key, base.has_masks)):
            return "compact"
        pixels = pixels_bytes(base, data.image_size, data.fit)
        if self._makes_room(key, pixels):
            return "pixels"
        compact = compact_bytes(base, data.image_size, data.fit)
        more = f"images: {pixels / GB:.1f} GB of pixels do not fit into cache.total_gb, {limit:g}"
        if self._makes_room(key, compact):
            self._say_once(f"{more}; they are kept as JPEG, about {compact / GB:.1f} GB")
            return "compact"
        self._say_once(f"{more}, nor do {compact / GB:.1f} GB of JPEG; they are read from the data set every time")
        return "none"

    def _makes_room(self, key: str, needed: float) -> bool:
        """Whether so many bytes are within the limit of all caches, maybe after others have gone."""
        if self.processes.local_rank != 0:
            return True
        fits, removed = make_room(self.folder, needed, self.config.cache.total_gb * GB, self._used | {key})
        if removed:
            freed = sum(entry.size for entry in removed) / GB
            self.reporter.line(f"cache: {freed:.1f} GB that were not used for the longest time made room for more")
        return fits

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.reporter.line(line)

    def _workers(self, kind: str, pixels: Pixels | CompactPixels | None) -> int:
        """Processes that load: none where all there is to do is to copy from the pixel cache."""
        if self.config.runtime.workers is not None:
            return self.config.runtime.workers
        if kind == "none" and isinstance(pixels, Pixels):
            return 0
        return max(1, min(8, (os.cpu_count() or 1) // self.config.runtime.devices))
