"""A model with all that it needs to predict and to explain itself, as a folder in Hugging Face Hub format.

`ExportedModel` writes and reads the folder, `push_folder` uploads it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import huggingface_hub
import safetensors.torch
import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from safetensors import SafetensorError
from torch import Tensor

from dapl.common.errors import BrokenError, DaplError, MissingError, reason_of
from dapl.common.files import make_folder, replacing_folder, write_bytes, write_json, write_text
from dapl.common.reading import read_bytes, refuse_links_out, regular_file
from dapl.data.sample import Splits
from dapl.explain.classifier import Classifier, about
from dapl.explain.parts import ModelRecords
from dapl.export.folder import (
    ADVICE,
    CARD,
    CONFIG,
    IMAGES,
    MAX_BYTES,
    METRICS,
    NAMES,
    RECORDS,
    WALL,
    WEIGHTS,
    ExportConfig,
    ExportedImage,
    ExportedPatches,
    ExportRecords,
    ModelCard,
    PatchRecord,
    check_replaceable,
    image_name,
    read_config,
    read_records,
)
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.models.weights import first_not_finite, hub_or_cache, write_tensors
from dapl.runs.checkpoint import restore_model
from dapl.runs.loading import load_run
from dapl.runs.run import evaluation_in
from dapl.runs.schemas import PrototypeLook, PrototypeRecord


def check_push(name: str, formats: Sequence[str] = ("hub",)) -> None:
    """What can be known before anything is computed: the format, the name, and that somebody is logged in.

    >>> check_push("user/birds", ["onnx"])
    Traceback (most recent call last):
    dapl.common.errors.DaplError: --push user/birds: the hub takes hub format; add it, --format onnx,hub.
    """
    if "hub" not in formats:
        raise DaplError(f"--push {name}: the hub takes hub format; add it, --format {','.join((*formats, 'hub'))}.")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise DaplError(f"--push {name}: not a name of the hub, such as user/model ({error}).") from error
    if huggingface_hub.get_token() is None:
        raise DaplError(
            f"--push {name}: nobody is logged in to the hub; run `hf auth login`, or set HF_TOKEN to a token that may "
            "write. Without --push the folder is written all the same."
        )


def push_folder(folder: Path, name: str, private: bool = False) -> str:
    """Make the repository where there is none, upload everything in one commit, return its address.

    >>> push_folder(Path("runs/birds/export"), "user/birds", private=True)  # doctest: +SKIP
    'https://huggingface.co/user/birds'
    """
    check_push(name)
    api = huggingface_hub.HfApi(library_name="dapl")
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository.repo_id, commit_message="Export from dapl")
    except Exception as error:  # the hub client raises a class of its own for each way in which it can fail
        raise DaplError(
            f"--push {name}: the hub at {huggingface_hub.constants.ENDPOINT} did not take it ({reason_of(error)}); the "
            f"folder {folder} is whole, `hf upload {name} {folder}` tries again."
        ) from error
    return str(repository)


_DOWNLOADED = (CONFIG, WEIGHTS, RECORDS, METRICS, f"{IMAGES}/*.jpg")
"""What is fetched from the hub, and all that is ever read."""


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """What an exported folder holds, in memory. ``save_pretrained`` and ``from_pretrained`` need no network.

    >>> model = ExportedModel.from_pretrained("runs/birds/export")  # doctest: +SKIP
    >>> model.predict("bird.png").class_name  # doctest: +SKIP
    'Indigo Bunting'
    """

    model: PrototypeModel
    """In evaluation mode, on the CPU."""
    config: ExportConfig
    records: list[PrototypeRecord] = field(default_factory=list)
    images: dict[int, ExportedImage] = field(default_factory=dict)
    """The patch of each prototype by its index."""
    metrics: dict[str, Any] | None = None
    """As `dapl evaluate` wrote them; None where nothing was measured."""
    wall: bytes | None = None
    """PNG for the model card; not read back."""
    looks: list[PrototypeLook] = field(default_factory=list)
    """Where each prototype looks, as it was measured; empty where it was not."""

    def __repr__(self) -> str:
        model = self.config.model
        counts = f"{len(self.classes)} classes, {len(self.model.prototypes)} prototypes"
        return f"ExportedModel({model.system} on {model.backbone.name}, {counts})"

    @property
    def classes(self) -> list[str]:
        return self.config.classes

    @property
    def patches(self) -> ExportedPatches:
        return ExportedPatches(self.images)

    @cached_property
    def classifier(self) -> Classifier:
        """With ``predict`` and ``explain``."""
        known, data = ModelRecords(self.classes, self.records, self.looks), self.config.data
        words = about(self.config.model, data.name)
        return Classifier(self.model, known, data.image_size, data.fit, words, self.patches)

    def predict(self, image: Any, **options: Any) -> Any:
        """As `dapl.explain.classifier.Classifier.predict`."""
        return self.classifier.predict(image, **options)

    def explain(self, image: Any, **options: Any) -> Any:
        """As `dapl.explain.classifier.Classifier.explain`."""
        return self.classifier.explain(image, **options)

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the folder; an earlier export there is replaced, anything else is refused."""
        folder = Path(folder)
        with replacing_folder(folder, check_replaceable) as stage:
            self.write(stage)
        return folder

    def write(self, folder: Path, with_onnx: bool = False) -> None:
        """The files, into a folder that is there. ``with_onnx``: the card says that model.onnx lies beside them."""
        write_tensors(folder / WEIGHTS, self.model.state_dict(), {"format": "pt"})
        (folder / WEIGHTS).chmod(0o644)  # safetensors makes files that only their owner can read
        write_json(folder / CONFIG, self.config.model_dump(mode="json"))
        shown = [PatchRecord(index=j, outline=p.outline) for j, p in sorted(self.images.items())]
        records = ExportRecords(prototypes=self.records, patches=shown, looks=self.looks)
        write_json(folder / RECORDS, records.model_dump(mode="json"))
        make_folder(folder / IMAGES)
        for index, exported in self.images.items():
            write_bytes(folder / IMAGES / image_name(index), exported.jpeg)
        if self.wall is not None:
            write_bytes(folder / WALL, self.wall)
        if self.metrics is not None:
            write_json(folder / METRICS, self.metrics)
        write_text(folder / CARD, self.card(with_onnx))

    def card(self, with_onnx: bool = False) -> str:
        """The model card. ``with_onnx``: it says that model.onnx lies beside it."""
        prototypes = self.model.prototypes
        counts = len(prototypes), int(prototypes.kept.sum()) if len(prototypes) else 0
        described = self.classifier.known.described
        beside = sum(record.kept and described(record.index).background for record in self.records)
        has_wall = self.wall is not None
        return str(ModelCard(self.config, self.metrics, *counts, beside, bool(self.images), has_wall, with_onnx))

    @classmethod
    def from_pretrained(cls, name: Path | str, revision: str | None = None) -> ExportedModel:
        """From a folder, or by its name (``user/model``) from the hub or its cache."""
        folder = Path(name)
        return load_exported(folder if folder.is_dir() else _downloaded(str(name), revision))

    def push_to_hub(self, name: str, private: bool = False) -> str:
        """Save to a temporary folder and upload that; returns the address."""
        with tempfile.TemporaryDirectory() as folder:
            return push_folder(self.save_pretrained(Path(folder) / "model"), name, private)


def is_exported(folder: Path | str) -> bool:
    """Whether this is an exported folder rather than a run: it has config.json and weights.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before = is_exported(folder)
    ...     for name in (CONFIG, WEIGHTS):
    ...         _ = (Path(folder) / name).write_text("")
    ...     print(before, is_exported(folder))
    False True
    """
    return (Path(folder) / CONFIG).is_file() and (Path(folder) / WEIGHTS).is_file()


def load_classifier(folder: Path | str, splits: Splits | None = None) -> Classifier:
    """The model of a run directory, or of an exported folder, ready to predict and to explain.

    ``splits``: the data of a run that was trained on data handed over in Python.

    >>> load_classifier("runs/birds/export").predict("bird.png").class_name  # doctest: +SKIP
    'Indigo Bunting'
    """
    folder = Path(folder).expanduser()
    return load_exported(folder).classifier if is_exported(folder) else Classifier.of_run(load_run(folder), splits)


def load_exported(folder: Path | str) -> ExportedModel:
    """Read what `ExportedModel.save_pretrained` wrote. Of an export made by anyone: no file of it can run code.

    >>> load_exported("runs/birds/export").model.prototypes  # doctest: +SKIP
    Prototypes(100 × 16, groups=10, epsilon=0.0001)
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DaplError(f"{folder}: no such folder; `dapl export RUN` makes one.")
    # The cache of the hub keeps the files of a model in a folder beside its versions, which hold links to them.
    in_cache = folder.parent.name == "snapshots" and (folder.parents[1] / "blobs").is_dir()
    refuse_links_out(folder, frozenset(NAMES), folder.parents[1] if in_cache else None)
    config, records = read_config(folder), read_records(folder)
    model = build_model(config.model, len(config.classes), pretrained=False)
    weights = _read_weights(folder / WEIGHTS)
    restore_model(model, weights, folder / WEIGHTS)
    if (broken := first_not_finite(weights)) is not None:
        raise DaplError(f"{folder / WEIGHTS}: {broken} has values that are not finite; export or download it anew.")
    _set_normalisation(model, config)
    indices, count = [record.index for record in records.prototypes], len(model.prototypes)
    if indices and indices != list(range(count)):
        raise DaplError(
            f"{folder / RECORDS}: does not list the {count} prototypes of the model in order; export the run anew."
        )
    metrics = evaluation_in(folder / METRICS, "export the run anew") if (folder / METRICS).exists() else None
    return ExportedModel(
        model.eval().requires_grad_(False),
        config,
        records.prototypes,
        _read_images(folder / IMAGES, records.patches),
        metrics,
        looks=records.looks if len(records.looks) == count else [],
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(regular_file(path, "`dapl export RUN` makes a whole folder"))
    except (SafetensorError, OSError, ValueError) as error:
        raise DaplError(f"{path}: not a whole safetensors file ({error}); export or download it anew.") from error


def _set_normalisation(model: PrototypeModel, config: ExportConfig) -> None:
    """Mean and deviation come with the backbone, from timm; another version of timm must not change them."""
    for name, values in (("mean", config.mean), ("std", config.std)):
        own = getattr(model.backbone, name, None)
        if isinstance(own, Tensor):
            own.copy_(torch.tensor(values).view_as(own))


def _read_images(folder: Path, patches: Sequence[PatchRecord]) -> dict[int, ExportedImage]:
    """What is listed and there. Names are made from numbers, so nothing outside the folder is opened."""
    found = {}
    for patch in patches:
        with suppress(MissingError, BrokenError):
            jpeg = read_bytes(folder / image_name(patch.index), ADVICE, MAX_BYTES)
            found[patch.index] = ExportedImage(jpeg, patch.outline)
    return found


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        with hub_or_cache():
            return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_DOWNLOADED)))
    except Exception as error:  # the hub client raises a class of its own for each way in which it can fail
        raise DaplError(
            f"{name}: no such folder, and the hub did not give it ({reason_of(error)}); check the name (a folder, or "
            "user/model) and the network."
        ) from error
