"""The ONNX file says what PyTorch says, in any batch, near and far from the prototypes; else there is no file."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.export import onnx_file
from dapl.export.export import images_of_test
from dapl.export.onnx_file import InferenceGraph, compare, open_session, write_onnx
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import load_run


def answers(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    """images: uint8 B×3×S×S."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images.numpy().astype(np.float32) / 255}), strict=True))


@pytest.mark.parametrize("batch", [1, 3, 7])
@torch.no_grad()
def test_it_says_what_pytorch_says(run: Path, onnx_model: Path, batch: int) -> None:
    loaded = load_run(run)
    images = images_of_test(loaded.config, batch)
    given, model = answers(onnx_model, images), loaded.model
    embedding = model.embed(model.extractor(images))
    if len(model.prototypes) == 0:
        assert set(given) == {"logits", "scores"}
        scores = model(images).scores
    else:
        maps = model.maps(embedding, torch.arange(len(model.prototypes)))  # by differences: exact
        assert np.abs(given["maps"] - maps.numpy()).max() <= 1e-4
        assert np.array_equal(given["maps"].max((2, 3)), given["scores"])
        scores = maps.amax((2, 3))
    assert np.abs(given["scores"] - scores.numpy()).max() <= 1e-4
    # a logit adds up scores, about ten times their size here, and what single precision loses of each
    np.testing.assert_allclose(given["logits"], model.classify(scores).numpy(), rtol=1e-4, atol=1e-4)


def test_shapes_and_metadata(system: str, run: Path, onnx_model: Path) -> None:
    session = open_session(onnx_model)
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("images", "tensor(float)", ["batch", 3, 64, 64])
    ]
    assert all(output.shape[0] == "batch" and output.type == "tensor(float)" for output in session.get_outputs())
    loaded, facts = load_run(run), session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == loaded.classes
    assert facts["system"] == system
    assert json.loads(facts["image_size"]) == 64
    assert facts["fit"] == loaded.config.data.fit
    onnx.checker.check_model(onnx.load(onnx_model), full_check=True)


def test_no_path_of_the_machine_is_in_it(onnx_model: Path) -> None:
    content = (onnx_model).read_bytes()
    for trace in (str(Path.home()), "site-packages", "src/dapl", ".py", os.fspath(onnx_model.parent)):
        assert trace.encode() not in content, trace


def test_it_runs_without_torch_and_dapl(onnx_model: Path, run: Path) -> None:
    code = (
        "import sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "logits = session.run(['logits'], {'images': numpy.full((2, 3, 64, 64), 0.5, numpy.float32)})[0]\n"
        "assert 'torch' not in sys.modules and 'dapl' not in sys.modules\n"
        "print(' '.join(str(value) for value in logits[1]))\n"
    )
    command = [sys.executable, "-c", code, str(onnx_model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = load_run(run).model(torch.full((2, 3, 64, 64), 0.5)).logits[1]
    torch.testing.assert_close(torch.tensor([float(v) for v in done.stdout.split()]), expected, rtol=0, atol=1e-4)


def test_it_is_exact_where_a_prototype_meets_its_patch(run: Path, onnx_model: Path) -> None:
    """There ‖z‖² − 2z·p + ‖p‖² in single precision is all rounding, and the similarity is steepest."""
    loaded = load_run(run)
    if len(loaded.model.prototypes) == 0:
        return
    train = build_splits(loaded.config.data).train
    sources = sorted({train.names.index(str(record.image)) for record in loaded.records})
    images = torch.stack([fit(train[row], 64, loaded.config.data.fit).image.as_subclass(Tensor) for row in sources])
    assert max(compare(onnx_model, loaded.model, images).values()) <= 1e-4
    best = float(loaded.model.prototypes.similarity(torch.zeros(1)))
    assert np.abs(answers(onnx_model, images)["scores"].max(0) - best).max() < 1e-2


@pytest.fixture(scope="module")
def near(
    evaluated: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[PrototypeModel, Path, Tensor]:
    """(model whose prototypes are patches of the images or very near one, two of them pruned; its file; images)."""
    loaded = load_run(evaluated("dapl"))
    model, images = loaded.model, images_of_test(loaded.config, 3)
    with torch.no_grad():
        patches = model.embed(model.backbone(images)).values.flatten(3)
        for j in range(len(model.prototypes)):
            patch = patches[j % len(patches), j % model.prototypes.groups, :, j % patches.shape[3]]
            model.prototypes.vectors[j] = patch + (1e-3 if j % 2 else 0.0)
    model.prototypes.kept[[0, 3]] = False
    path = tmp_path_factory.mktemp("near") / "model.onnx"
    assert max(write_onnx(path, model, images, {}).values()) <= 1e-4
    return model, path, images


def test_it_is_exact_very_near_a_patch(near: tuple[PrototypeModel, Path, Tensor]) -> None:
    model, path, images = near
    given = answers(path, images)
    assert abs(given["scores"].max() - float(model.prototypes.similarity(torch.zeros(1)))) < 1e-3
    assert np.array_equal(given["maps"].max((2, 3)), given["scores"])


@torch.no_grad()
def test_pruned_prototypes_do_not_count(near: tuple[PrototypeModel, Path, Tensor]) -> None:
    model, path, images = copy.deepcopy(near[0]), *near[1:]
    given = {name: torch.from_numpy(value) for name, value in answers(path, images).items()}
    assert given["scores"].shape[1] == len(model.prototypes)  # not renumbered
    torch.testing.assert_close(given["logits"], model.classify(given["scores"]), rtol=0, atol=1e-4)
    model.prototypes.kept[:] = True
    assert (given["logits"] - model.classify(given["scores"])).abs().max() > 1e-2


def test_the_model_is_left_as_it_is(own_run: Path) -> None:
    model = load_run(own_run).model
    before = {name: (tensor.dtype, tensor.clone()) for name, tensor in model.state_dict().items()}
    graph = InferenceGraph(model)
    assert graph.compared.prototypes.vectors.dtype == torch.float64
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name][0]
        assert torch.equal(tensor, before[name][1])


def spoil(right: Path, wrong: Path) -> None:
    """The same file, but logits are right for batches of two only, scores a little off, and maps no numbers."""
    model = onnx.load(str(right))
    outputs = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"right_{name}" if name in outputs else name for name in names]
    constants = {"first": np.array(0), "two": np.float32([2]), "little": np.float32([2e-2])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    made = (
        ("Shape", ["right_logits"], "shape", {}),
        ("Gather", ["shape", "first"], "batch", {}),
        ("Cast", ["batch"], "images_at_once", {"to": onnx.TensorProto.FLOAT}),
        ("Div", ["two", "images_at_once"], "factor", {}),
        ("Mul", ["right_logits", "factor"], "logits", {}),
        ("Add", ["right_scores", "little"], "scores", {}),
        ("Sub", ["right_maps", "right_maps"], "zero", {}),
        ("Div", ["zero", "zero"], "maps", {}),
    )
    model.graph.node.extend(onnx.helper.make_node(kind, given, [name], **more) for kind, given, name, more in made)
    onnx.save(model, str(wrong))


def test_a_file_that_differs_is_not_kept(
    evaluated: Callable[[str], Path],
    export_of: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, right = load_run(evaluated("dapl")), export_of("dapl", "onnx") / "model.onnx"
    monkeypatch.setattr(onnx_file, "_trace", lambda graph, size, facts, path: spoil(right, path))
    folder = tmp_path / "out"
    with pytest.raises(DaplError, match=r"logits by .*, scores by 2\.\de-02 .*, maps by inf"):
        write_onnx(folder / "model.onnx", loaded.model, images_of_test(loaded.config, 3), {})
    assert list(folder.iterdir()) == []


def test_another_model_is_told_apart(evaluated: Callable[[str], Path], export_of: Callable[[str, str], Path]) -> None:
    loaded = load_run(evaluated("dapl"))
    with torch.no_grad():
        loaded.model.prototypes.vectors[0] += 0.01
    with pytest.raises(DaplError, match="differ"):
        compare(export_of("dapl", "onnx") / "model.onnx", loaded.model, images_of_test(loaded.config, 2))


def test_large_values_may_differ_by_more() -> None:
    """A float of −1,000 has no digit left for 1e-4."""
    expected = np.array([[-1000.0, 5.0]])
    assert onnx_file._differences(expected + np.array([5e-3, 0]), expected)[1] <= onnx_file.LIMIT
    assert onnx_file._differences(expected + np.array([0, 1.1e-4]), expected)[1] > onnx_file.LIMIT
    assert onnx_file._differences(expected[:, :1], expected) == (float("inf"), float("inf"))


def test_missing_packages_are_named(own_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx_file, "_PACKAGES", ("onnx", "no_such_package"))
    loaded = load_run(own_run)
    with pytest.raises(DaplError, match=r"no_such_package; `pip install 'dapl\[export\]'`"):
        write_onnx(tmp_path / "model.onnx", loaded.model, images_of_test(loaded.config, 1), {})


def test_a_network_that_cannot_be_traced(own_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Branching(InferenceGraph):
        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            return super().forward(images if images.sum().item() > 0 else images + 1)

    monkeypatch.setattr(onnx_file, "InferenceGraph", Branching)
    loaded = load_run(own_run)
    with pytest.raises(DaplError, match="cannot be written as ONNX"):
        write_onnx(tmp_path / "model.onnx", loaded.model, images_of_test(loaded.config, 1), {})
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(("single", "kept"), [(0.0, False), (3e-5, True), (1.0, True)])
@pytest.mark.parametrize("error", [1.5e-4, 4e-3])
def test_a_file_may_be_off_as_single_precision_is(
    near: tuple[PrototypeModel, Path, Tensor], monkeypatch: pytest.MonkeyPatch, single: float, kept: bool, error: float
) -> None:
    """Ten times as far as PyTorch itself, where that is more than the limit; beyond 3e-3 it is too much."""
    model, path, images = near
    answered, referred = onnx_file._answers, onnx_file.reference

    def reference(of: PrototypeModel, pixels: Tensor) -> dict[str, Tensor]:
        """Off by ``single`` in single precision, and by nothing else, on whatever processor."""
        off = single if pixels.dtype == torch.float32 else 0.0
        return {name: values + off for name, values in referred(onnx_file.exact(of), pixels.double()).items()}

    monkeypatch.setattr(onnx_file, "_answers", lambda *given: [one + error for one in answered(*given)])
    monkeypatch.setattr(onnx_file, "reference", reference)
    if kept and error < onnx_file.MOST:
        assert max(compare(path, model, images).values()) == pytest.approx(error, rel=0.5)
    else:
        with pytest.raises(DaplError, match="differ on images"):
            compare(path, model, images)
