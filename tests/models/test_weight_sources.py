"""Weights with a name: what they bring, where their file comes from, and that a wrong one is refused."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import dapl.common.operators  # noqa: F401  (before timm, which imports torchvision)  # isort: skip
import pytest
import safetensors.torch
import timm
import torch
from torch.testing import assert_close

from dapl.common.errors import DaplError
from dapl.config import load_config
from dapl.models import weight_sources
from dapl.models.backbone import create_backbone
from dapl.models.build import build_model
from dapl.models.weight_sources import (
    INAT_BIRDS,
    SOURCES,
    WeightSource,
    converted_tflite,
    models_folder,
    published_file,
)
from dapl.models.weights import blank_network, has_folded_norms, resolve_weights, without_weights

TINY = WeightSource(
    name="tiny",
    backbone="test_efficientnet",
    file="tiny.safetensors",
    published="tiny.tflite",
    address="file:///nowhere/",
    checksum=hashlib.sha256(b"published").hexdigest(),
    licence="Apache-2.0",
    title="a tiny source",
    arguments={"pad_type": "same"},
    mean=(0.1, 0.2, 0.3),
    std=(0.5, 0.6, 0.7),
    notices={"toybirds": "drawn birds are known to it"},
)


@pytest.fixture
def tiny_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightSource:
    """A source whose file, of random weights, is in the folder that DAPL_MODELS names."""
    monkeypatch.setitem(SOURCES, "tiny", TINY)
    monkeypatch.setenv("DAPL_MODELS", str(tmp_path))
    torch.manual_seed(0)
    safetensors.torch.save_file(timm.create_model("test_efficientnet").state_dict(), tmp_path / TINY.file)
    return TINY


@pytest.fixture(scope="module")
def models() -> Path:
    """The folder with the published and the converted file, which are not in the repository."""
    folder = os.environ.get("DAPL_MODELS") or pytest.skip(f"set DAPL_MODELS to a folder with {INAT_BIRDS.file}")
    if not all((Path(folder) / name).is_file() for name in (INAT_BIRDS.file, INAT_BIRDS.published)):
        pytest.skip(f"{folder} lacks {INAT_BIRDS.file} or {INAT_BIRDS.published}")
    return Path(folder)


# --- what a source brings -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_source_decides_weights_paddings_and_normalisation(tiny_source: WeightSource, tmp_path: Path) -> None:
    backbone = create_backbone("test_efficientnet", weights="tiny").eval()
    expected = timm.create_model("test_efficientnet", features_only=True, out_indices=[4], pad_type="same").eval()
    saved = safetensors.torch.load_file(tmp_path / tiny_source.file)
    expected.load_state_dict({name: saved[name] for name in expected.state_dict()})
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (tiny_source.mean, tiny_source.std))
    assert_close(backbone(images), expected((images - mean) / std)[0])
    other = timm.create_model("test_efficientnet", features_only=True, out_indices=[4]).eval()
    other.load_state_dict(expected.state_dict())
    assert not torch.allclose(other((images - mean) / std)[0], backbone(images))  # it is the padding that counts


@pytest.mark.usefixtures("tiny_source")
def test_a_model_that_waits_for_its_checkpoint_has_the_paddings_and_the_normalisation_too(tmp_path: Path) -> None:
    config = load_config(None, {"model.backbone.name": "test_efficientnet", "model.backbone.weights": "tiny"})
    whole = build_model(config.model, classes=3)
    (tmp_path / TINY.file).unlink()
    empty = build_model(config.model, classes=3, pretrained=False)
    assert not torch.equal(empty.backbone.network.conv_stem.weight, whole.backbone.network.conv_stem.weight)  # type: ignore[union-attr]
    assert torch.equal(empty.backbone.mean, whole.backbone.mean)  # type: ignore[arg-type]
    empty.load_state_dict(whole.state_dict())
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(empty.eval()(images).logits, whole.eval()(images).logits)
    with pytest.raises(DaplError, match="tiny is neither in"):  # the switch is off again
        build_model(config.model, classes=3)


def test_a_folder_of_the_config_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPL_MODELS", str(tmp_path / "variable"))
    assert models_folder() == tmp_path / "variable"
    assert models_folder(str(tmp_path / "flag")) == tmp_path / "flag"
    monkeypatch.delenv("DAPL_MODELS")
    assert models_folder() == Path.home() / ".cache/dapl/models"


# --- where the file comes from --------------------------------------------------------------------------------------


def test_a_source_that_cannot_be_had_says_what_to_do(tmp_path: Path) -> None:
    source = replace(TINY, address=f"{tmp_path.as_uri()}/")
    with pytest.raises(DaplError, match=r"tiny is neither in .* put tiny\.safetensors or tiny\.tflite .* DAPL_MODELS"):
        published_file(source, tmp_path)


def test_a_download_is_checked_and_kept(tmp_path: Path) -> None:
    (tmp_path / "tiny.tflite").write_bytes(b"published")
    source, folder = replace(TINY, address=f"{tmp_path.as_uri()}/"), tmp_path / "models"
    assert published_file(source, folder) == b"published"
    assert (folder / "tiny.tflite").read_bytes() == b"published"
    (tmp_path / "tiny.tflite").unlink()
    assert published_file(source, folder) == b"published"


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.tflite").write_bytes(b"changed")
    with pytest.raises(DaplError, match=r"tiny\.tflite: its SHA-256 is not that of tiny"):
        published_file(TINY, tmp_path)
    folder = tmp_path / "models"
    with pytest.raises(DaplError, match="its SHA-256 is not that of tiny"):
        published_file(replace(TINY, address=f"{tmp_path.as_uri()}/"), folder)
    assert not folder.exists()


def test_sources_of_another_network_and_unknown_names() -> None:
    with pytest.raises(DaplError, match="inat_birds are weights of mobilenetv2_100, not of resnet18"):
        create_backbone("resnet18", weights="inat_birds")
    with pytest.raises(DaplError, match="'inat_bird' is neither a file nor a name; did you mean 'inat_birds'"):
        create_backbone("mobilenetv2_100", weights="inat_bird")


# --- .tflite --------------------------------------------------------------------------------------------------------


def test_the_published_file_becomes_the_converted_one_tensor_by_tensor(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("tflite")
    (tmp_path / INAT_BIRDS.published).write_bytes((models / INAT_BIRDS.published).read_bytes())
    made, _ = resolve_weights("mobilenetv2_100", "inat_birds", str(tmp_path))
    assert made is not None
    for state in (made, safetensors.torch.load_file(tmp_path / INAT_BIRDS.file)):
        expected = safetensors.torch.load_file(models / INAT_BIRDS.file)
        assert set(state) == set(expected)
        for name, value in expected.items():
            assert torch.equal(state[name], value), name


def test_what_is_no_tflite_file_and_what_is_of_another_model(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("tflite")
    content = (models / INAT_BIRDS.published).read_bytes()
    with pytest.raises(DaplError, match=r"f\.tflite: cannot be read as a \.tflite file"):
        converted_tflite(b"no such thing", blank_network("mobilenetv2_100"), Path("f.tflite"))
    with pytest.raises(DaplError, match=r"f\.tflite: has 53 layers with weights where the model has \d+"):
        converted_tflite(content, blank_network("test_efficientnet"), Path("f.tflite"))
    with pytest.raises(DaplError, match=r"shape \(32, 3, 3, 3\) stands where the model has conv_stem\.weight \(48,"):
        converted_tflite(content, blank_network("mobilenetv2_140"), Path("f.tflite"))


@torch.no_grad()
def test_the_published_network_knows_birds(models: Path, cub_root: Path) -> None:
    """On photographs of CUB: the class that timm's whole model gives is that of the published labels."""
    from dapl.data.cub import read_cub
    from dapl.data.transforms import fit

    state, _ = resolve_weights("mobilenetv2_100", "inat_birds", str(models))
    assert state is not None
    network = timm.create_model("mobilenetv2_100", num_classes=965, pad_type="same").eval()
    network.load_state_dict(state)
    labels = (models / "inat_bird_labels.txt").read_text().splitlines()
    dataset = read_cub(cub_root).dataset("test")
    rows = [next(i for i, name in enumerate(dataset.names) if wanted in name) for wanted in ("Cardinal", "Blue_Jay")]
    images = torch.stack([fit(dataset[row], 224, "stretch").image for row in rows]).float() / 127.5 - 1
    found = [labels[index] for index in network(images).argmax(1)]
    assert ["Northern Cardinal" in found[0], "Blue Jay" in found[1]] == [True, True], found


# --- folded batch-norm ----------------------------------------------------------------------------------------------


def test_folded_batch_norm_is_seen(models: Path) -> None:
    state, _ = resolve_weights("mobilenetv2_100", "inat_birds", str(models))
    assert state is not None
    assert has_folded_norms(state)
    assert not has_folded_norms(timm.create_model("test_efficientnet").state_dict())  # never trained, not folded
    assert not has_folded_norms({"weight": torch.zeros(1)})


def folded_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = timm.create_model("test_efficientnet").state_dict()
    return {name: torch.randn(value.shape) if name.endswith("bias") else value for name, value in state.items()}


def test_statistics_of_folded_batch_norm_are_not_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "folded.safetensors"
    safetensors.torch.save_file(folded_state(), file)
    with pytest.raises(DaplError, match=r"freeze_statistics: the batch-norm of .*folded\.safetensors is folded"):
        create_backbone("test_efficientnet", weights=str(file), freeze_statistics=False)
    # A source says so itself, also where the weights come from a checkpoint.
    monkeypatch.setitem(weight_sources.SOURCES, "tiny", replace(TINY, folded=True))
    with without_weights(), pytest.raises(DaplError, match="the batch-norm of tiny is folded"):
        create_backbone("test_efficientnet", weights="tiny", freeze_statistics=False)


def test_a_folded_backbone_can_be_trained_with_its_statistics_frozen(tmp_path: Path) -> None:
    """In training mode it gives what it gives in evaluation mode, and a step changes weights and no statistics."""
    safetensors.torch.save_file(folded_state(), tmp_path / "folded.safetensors")
    backbone = create_backbone("test_efficientnet", weights=str(tmp_path / "folded.safetensors"))
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = backbone.eval()(images).detach()
    features = backbone.train()(images)
    assert torch.equal(features, expected)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = torch.optim.SGD(backbone.parameters(), 1e-3)
    loss = features.square().mean()
    loss.backward()
    optimizer.step()
    after = backbone.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert not [name for name in changed if "running" in name]
    assert {"network.conv_stem.weight", "network.bn1.bias"} <= changed
    assert backbone(images).square().mean() < loss
