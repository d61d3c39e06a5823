"""A model as an ONNX file, which is compared with PyTorch on real images before it gets its name.

`InferenceGraph` is what the file computes: the model as a plain function of pixels, without what only training needs.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError, reason_of
from dapl.common.files import replacing
from dapl.models.contract import PrototypeModel

if TYPE_CHECKING:
    import onnxruntime


class InferenceGraph(nn.Module):
    """images float B×3×S×S in [0, 1] → logits B×C, scores B×P, activation maps B×P×H×W.

    A system without prototypes has no maps; its scores are whatever its classifier reads.

    Distances are taken in double precision: ‖z‖² − 2z·p + ‖p‖² of floats is off by about 1e-6, and the log similarity
    turns 1e-6 near a distance of 0 into 1e-2. One matrix product in double precision costs less than all differences
    z − p would. A score, where it is not negative, is the maximum of its map by construction.
    """

    def __init__(self, model: PrototypeModel) -> None:
        """The model itself is left as it is."""
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        self.compared = _with_double_prototypes(self.model)

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("logits", "scores", "maps")[: 3 if len(self.model.prototypes) else 2]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.model.extractor(images)
        if len(self.model.prototypes) == 0:
            output = self.model.from_features(features)
            return output.logits, output.scores
        embedding, prototypes = self.model.embed(features), self.compared.prototypes
        distances = prototypes.distances(embedding.values)
        scores = prototypes.similarity(distances.flatten(2).amin(2)).float()
        maps = self.compared.maps_of_distances(distances, embedding).float()
        return self.model.classify(scores), scores, maps


def _with_double_prototypes(model: PrototypeModel) -> PrototypeModel:
    """The same modules but for the prototypes, which are a copy in double precision."""
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    twin.prototypes = copy.deepcopy(model.prototypes).double()
    return twin


LIMIT = 1e-4
"""Largest difference between ONNX Runtime and PyTorch that is let through, of any logit, score or cell of a map."""
LARGE = 10.0
"""A value beyond may differ by as much more as it is larger: a logit of −1,000 has no more than six digits in float."""
SINGLE = 10.0
"""Beyond LIMIT the file may be off by so many times what PyTorch itself is in single precision, up to MOST.
Where heads see crops, what moves a crop by a millionth of the image is enlarged by the whole network behind it: on
drawn birds PyTorch is off by 9e-5 then and ONNX Runtime, with the same sums in another order, by 3e-4 to 5e-4."""
MOST = 3e-3
BATCHES = (1, 2, 5)
"""Sizes that are compared; a graph that took a batch size for a constant fails on one of them."""
OPSET = 20
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_onnx(path: Path, model: PrototypeModel, images: Tensor, facts: dict[str, Any]) -> dict[str, float]:
    """Write ``path`` and return the largest difference of each output; a file that differs more is not left behind.

    images: uint8 n×3×S×S, images to compare on. ``facts`` go into the file's metadata, texts as they are and all
    else as JSON.
    """
    check_packages()
    graph = InferenceGraph(model)
    with replacing(path) as temporary:
        _trace(graph, images.shape[-1], facts, temporary)
        return compare(temporary, model, images)


def check_packages() -> None:
    missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise DaplError(f"ONNX needs {', '.join(missing)}; `pip install 'dapl[export]'`, or export with --format hub.")


def _trace(graph: InferenceGraph, size: int, facts: dict[str, Any], path: Path) -> None:
    shapes = {"images": {0: torch.export.Dim("batch")}}
    try:
        with _quiet(), torch.no_grad():  # nothing here needs a gradient, and tracing without is a tenth quicker
            program = torch.onnx.export(
                _captured(graph, torch.zeros(2, 3, size, size), shapes),
                dynamo=True,
                input_names=["images"],
                output_names=list(graph.output_names),
                dynamic_shapes=shapes,  # for the name of the axis
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:  # the exporter raises a class of its own for each way in which a network can be odd
        raise DaplError(
            f"this model cannot be written as ONNX ({reason_of(error)}); export with --format hub, or train with "
            "another model.backbone.name."
        ) from error
    assert program is not None
    _forget_where(program.model)
    program.model.producer_name, program.model.producer_version = "dapl", str(facts.get("version", ""))
    program.model.metadata_props.update(
        {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    )
    program.save(str(path))


def _captured(graph: InferenceGraph, images: Tensor, shapes: dict[str, Any]) -> torch.export.ExportedProgram:
    """With a batch of any size. The quick way runs the Python code, and ``len(tensor)`` there would fix the size."""
    try:
        return torch.export.export(graph, (images,), dynamic_shapes=shapes, strict=False)
    except Exception:  # each way in which the quick one can fail has a class of its own; the other one's is reported
        return torch.export.export(graph, (images,), dynamic_shapes=shapes, strict=True)


def _forget_where(model: Any) -> None:
    """The exporter notes for each node where in the source it came from: paths of this machine, and half the nodes."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.metadata_props.clear()
        graph.metadata_props.clear()
        graph.doc_string = None


def compare(path: Path, model: PrototypeModel, images: Tensor) -> dict[str, float]:
    """Largest difference of each output between the file and ``model``, over batches of several sizes; or an error.

    images: uint8 n×3×S×S.
    """
    session, twin = open_session(path), exact(model)
    dtype = next(twin.parameters()).dtype
    names = [output.name for output in session.get_outputs()]
    batches = [batch.float() / 255 for batch in _batches(images)]
    expected = [reference(twin, pixels.to(dtype)) for pixels in batches]

    def differences(answer: Callable[[Tensor], dict[str, np.ndarray]]) -> dict[str, tuple[float, float]]:
        """The largest of each output and of what counts of it, over all images."""
        found = dict.fromkeys(names, (0.0, 0.0))
        for pixels, right in zip(batches, expected, strict=True):
            given = answer(pixels)
            for name in names:
                pair = _differences(given[name], right[name].numpy())
                found[name] = max(found[name][0], pair[0]), max(found[name][1], pair[1])
        return found

    found = differences(lambda pixels: dict(zip(names, _answers(session, names, pixels.numpy()), strict=True)))
    allowed = dict.fromkeys(names, LIMIT)
    if any(not excess <= LIMIT for _, excess in found.values()):
        single = differences(lambda pixels: {name: one.numpy() for name, one in reference(model, pixels).items()})
        allowed = {name: max(LIMIT, min(SINGLE * excess, MOST)) for name, (_, excess) in single.items()}
    wrong = [
        f"{name} by {most:.1e} (allowed: {allowed[name]:.1e})"
        for name, (most, excess) in found.items()
        if not excess <= allowed[name]
    ]
    if wrong:
        raise DaplError(
            f"ONNX Runtime and PyTorch differ on images of the run's data: {', '.join(wrong)}. The file was not kept; "
            "export with --format hub, or report the backbone and the versions."
        )
    return {name: most for name, (most, _) in found.items()}


def _answers(session: onnxruntime.InferenceSession, names: list[str], images: np.ndarray) -> list[Any]:
    try:
        return list(session.run(names, {"images": images}))
    except Exception as error:  # ONNX Runtime's own classes are not part of its interface
        raise DaplError(
            f"ONNX Runtime fails on {len(images)} images ({reason_of(error)}). The file was not kept; export with "
            "--format hub, or report the backbone and the versions."
        ) from error


@torch.no_grad()
def reference(model: PrototypeModel, images: Tensor) -> dict[str, Tensor]:
    """The outputs of PyTorch for float images B×3×S×S; `compare` hands over a model in double precision (`exact`)."""
    output = model(images)
    found = {"logits": output.logits, "scores": output.scores}
    if len(model.prototypes):
        found["maps"] = model.maps(output.embedding)
    return found


def exact(model: PrototypeModel) -> PrototypeModel:
    """A copy that computes in double precision, so that what is measured is the error of the file and no other.

    In single precision PyTorch itself may take a place for the nearest that is not, and be off by more than `LIMIT`.
    """
    return copy.deepcopy(model).double() if len(model.prototypes) else model


def open_session(path: Path | str) -> onnxruntime.InferenceSession:
    """On the CPU, with as many threads as PyTorch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _batches(images: Tensor) -> Iterator[Tensor]:
    """All images, in batches of the sizes of `BATCHES` in turn."""
    sizes = cycle(BATCHES)
    while len(images):
        batch, images = images.tensor_split([next(sizes)])
        yield batch


def _differences(given: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest difference, and the largest in units of max(1, |value| / LARGE).

    Infinite where the shapes differ or one of the two is not a number.
    """
    if given.shape != expected.shape:
        return float("inf"), float("inf")
    difference = np.abs(given.astype(np.float64) - expected.astype(np.float64))
    if not np.isfinite(difference).all():
        return float("inf"), float("inf")
    scaled = difference / np.maximum(1, np.abs(expected) / LARGE)
    return float(difference.max(initial=0.0)), float(scaled.max(initial=0.0))


@contextmanager
def _quiet(loggers: Sequence[str] = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")) -> Iterator[None]:
    """The exporter warns of its own deprecations and tells of each pass."""
    before = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
