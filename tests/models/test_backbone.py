"""Backbones through timm: shapes, fused stages, frozen statistics, and what a wrong name or stage gets."""

from __future__ import annotations

from pathlib import Path

import dapl.common.operators  # noqa: F401  (before timm, which imports torchvision)  # isort: skip
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.common.errors import DaplError
from dapl.config import load_config
from dapl.models.backbone import Backbone, Stage, create_backbone
from dapl.models.build import build_model

SIZE = 64
LAST = {"resnet18": 512, "vgg11_bn": 512, "tf_efficientnet_lite0": 320, "mobilenetv2_100": 320, "densenet161": 2208}
"""Channels of the last stage, which all of them have at a 32nd of the image."""


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def small() -> Backbone:
    torch.manual_seed(0)
    return create_backbone("mobilenetv2_100", weights="random").eval()


def slow_bilinear(maps: Tensor, height: int, width: int) -> Tensor:
    """C×h×w → C×height×width, pixel centres aligned as images are (align_corners=False), edges repeated."""
    rows, columns = maps.shape[1:]
    result = torch.empty(len(maps), height, width, dtype=maps.dtype)
    for y in range(height):
        for x in range(width):
            source_y = max((y + 0.5) * rows / height - 0.5, 0.0)
            source_x = max((x + 0.5) * columns / width - 0.5, 0.0)
            top, left = int(source_y), int(source_x)
            below, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            down, across = source_y - top, source_x - left
            upper = maps[:, top, left] * (1 - across) + maps[:, top, right] * across
            lower = maps[:, below, left] * (1 - across) + maps[:, below, right] * across
            result[:, y, x] = upper * (1 - down) + lower * down
    return result


def statistics(backbone: Backbone) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in backbone.named_buffers() if "running" in name}


@torch.no_grad()
@pytest.mark.parametrize("name", [*LAST, "test_vit"])
@pytest.mark.parametrize("stages", [[-2, -1], [-1]])
def test_the_earliest_stage_alone(name: str, stages: list[Stage], images: Tensor) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(name, stages, weights="random", fuse=False).eval()
    first, *_ = backbone(images)
    assert torch.equal(backbone.earliest(images), first)
    assert torch.equal(backbone.earliest((images * 255).to(torch.uint8)), backbone((images * 255).to(torch.uint8))[0])


@torch.no_grad()
@pytest.mark.parametrize("name", LAST)
def test_channels_and_reduction(name: str, images: Tensor) -> None:
    backbone = create_backbone(name, weights="random").eval()
    features = backbone(images)
    assert backbone.channels == LAST[name]
    assert backbone.reduction == 32
    assert features.shape == (2, LAST[name], SIZE // 32, SIZE // 32)
    assert features.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("stages", [[-2], [3]])
def test_a_stage_before_the_last(stages: list[int], images: Tensor) -> None:
    backbone = create_backbone("resnet18", stages, weights="random").eval()
    assert (backbone.channels, backbone.reduction) == (256, 16)
    assert backbone(images).shape == (2, 256, SIZE // 16, SIZE // 16)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mobilenetv2_100", "tf_efficientnet_lite0"])
def test_stages_are_fused_at_the_finest(name: str, images: Tensor) -> None:
    torch.manual_seed(0)
    fused = create_backbone(name, [-1, 2, -2], weights="random").eval().double()
    images = images.double()
    maps = fused.network((images - fused.mean) / fused.std)
    assert [m.shape[-1] for m in maps] == [SIZE // 8, SIZE // 16, SIZE // 32]
    expected = [torch.cat([slow_bilinear(m[image], SIZE // 8, SIZE // 8) for m in maps]) for image in range(2)]
    assert fused.reduction == 8
    assert fused.channels == len(expected[0])
    assert_close(fused(images), torch.stack(expected))


@torch.no_grad()
def test_balanced_stages_have_the_size_of_the_deepest(images: Tensor) -> None:
    torch.manual_seed(0)
    fused = create_backbone("tf_efficientnet_lite0", [-1, -2], weights="random", balance=True).eval().double()
    images = images.double() * torch.tensor([1.0, 0.2]).view(2, 1, 1, 1)  # two images of their own size
    early, deep = fused.network((images - fused.mean) / fused.std)
    deep = F.interpolate(deep, size=early.shape[-2:], mode="bilinear")
    found = fused(images)
    for image in range(2):
        factor = (sum(v**2 for v in deep[image].flatten().tolist()) / deep[image].numel()) ** 0.5
        factor /= (sum(v**2 for v in early[image].flatten().tolist()) / early[image].numel()) ** 0.5
        assert_close(found[image, : early.shape[1]], early[image] * factor)
    assert_close(found[:, early.shape[1] :], deep)
    assert_close(fused(images[:1]), found[:1])  # an image's features do not depend on its company


@torch.no_grad()
def test_balance_leaves_a_single_stage_alone_and_does_not_divide_by_zero(images: Tensor) -> None:
    torch.manual_seed(0)
    plain = create_backbone("resnet18", [-1], weights="random").eval()
    balanced = create_backbone("resnet18", [-1], weights="random", balance=True).eval()
    balanced.load_state_dict(plain.state_dict())
    assert torch.equal(plain(images), balanced(images))
    silent = create_backbone("resnet18", [-2, -1], weights="random", balance=True).eval()
    for parameter in silent.parameters():
        parameter.zero_()
    assert silent(images).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", ["mobilenetv2_100", "tf_efficientnet_lite0", "test_efficientnet", "test_vit"])
def test_the_head_is_what_timm_has_before_pooling(name: str, images: Tensor) -> None:
    torch.manual_seed(0)
    state = {key: value + 0.01 * torch.randn(value.shape) for key, value in floats(name).items()}
    whole = timm.create_model(name)
    whole.load_state_dict(state)
    backbone = Backbone(name, ["head"], state_dict=state).eval()
    expected = whole.eval().forward_features((images - backbone.mean) / backbone.std)
    if expected.dim() == 3:  # tokens, the first of which is that of the class
        expected = expected[:, 1:].transpose(1, 2).unflatten(2, (SIZE // 16, SIZE // 16))
    assert_close(backbone(images), expected)
    assert backbone.channels == expected.shape[1]
    assert backbone.stage_channels == (expected.shape[1],)


def floats(name: str) -> dict[str, Tensor]:
    """A state dict whose values can be changed a little."""
    return {key: value.float() for key, value in timm.create_model(name).state_dict().items()}


@torch.no_grad()
@pytest.mark.parametrize("stages", [[-2, "head"], ["head", -2], [-2, -1, "head"], ["head", -1, -2], [-1, -2]])
def test_stages_that_are_not_fused_keep_their_resolution(stages: list[Stage], images: Tensor) -> None:
    torch.manual_seed(0)
    apart = Backbone("test_efficientnet", stages, fuse=False).eval()
    fused = Backbone("test_efficientnet", stages).eval()
    fused.load_state_dict(apart.state_dict())
    maps = apart(images)
    sizes = {-2: (48, 4, 4), -1: (64, 2, 2), "head": (256, 2, 2)}
    assert [tuple(m.shape[1:]) for m in maps] == [sizes[stage] for stage in (-2, -1, "head") if stage in stages]
    assert apart.stage_channels == tuple(m.shape[1] for m in maps)
    upsampled = [F.interpolate(m, size=(4, 4), mode="bilinear") if m.shape[-1] < 4 else m for m in maps]
    assert_close(fused(images), torch.cat(upsampled, dim=1))
    assert fused.channels == sum(apart.stage_channels)


@torch.no_grad()
def test_one_stage_that_is_not_fused_is_a_tuple_too(images: Tensor) -> None:
    (maps,) = Backbone("test_efficientnet", [-1], fuse=False).eval()(images)
    assert maps.shape == (2, 64, 2, 2)


@pytest.mark.parametrize("name", ["resnet18", "test_vit4"])
def test_networks_without_a_layer_before_pooling_have_no_head(name: str) -> None:
    with pytest.raises(DaplError, match=rf"stages: {name} has no layer of its own before pooling"):
        create_backbone(name, ["head"], weights="random")


def test_weights_without_the_head_are_refused_where_it_is_asked_for() -> None:
    state = {key: value for key, value in floats("test_efficientnet").items() if not key.startswith("conv_head")}
    Backbone("test_efficientnet", [-1], state_dict=state)
    with pytest.raises(DaplError, match=r"stages: the weights lack conv_head\.weight, which the stage head needs"):
        Backbone("test_efficientnet", ["head"], state_dict=state)


@torch.no_grad()
def test_normalisation_is_included(small: Backbone) -> None:
    small.double()
    images = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(small.network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    expected = small.network((images.double() / 255 - mean) / std)[0]
    assert_close(small(images), expected)
    assert_close(small(images.double() / 255), expected)


@torch.no_grad()
def test_channels_come_second_also_for_networks_that_put_them_last() -> None:
    backbone = create_backbone("swin_tiny_patch4_window7_224", [-2, -1], weights="random").eval()
    assert backbone(torch.rand(1, 3, 224, 224)).shape == (1, backbone.channels, 14, 14)


@pytest.mark.parametrize("freeze", [True, False])
def test_batch_norm_statistics(freeze: bool, images: Tensor) -> None:
    backbone = create_backbone("mobilenetv2_100", weights="random", freeze_statistics=freeze)
    before = statistics(backbone)
    assert before
    backbone.train()
    backbone(images)
    after = statistics(backbone)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved == ([] if freeze else list(before))


def test_frozen_statistics_leave_the_rest_in_training_mode() -> None:
    backbone = create_backbone("mobilenetv2_100", weights="random")
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    backbone.train()
    assert backbone.training
    assert backbone.network.training
    assert not any(norm.training for norm in norms)
    assert all(norm.weight.requires_grad for norm in norms)
    backbone.eval()
    assert not any(module.training for module in backbone.modules())


def test_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "some.pth")
    for weights in ("random", "auto", "package", str(tmp_path / "some.pth")):
        with pytest.raises(DaplError, match=r"model\.backbone\.name: timm has no model 'resnet_18'.*resnet18"):
            create_backbone("resnet_18", weights=weights)
    with pytest.raises(DaplError, match="list_models"):
        create_backbone("qqqqqqqqqqqqqqq", weights="random")


@pytest.mark.parametrize("stages", [[5], [-6], [], [1, 1], [-1, 4]])
def test_stages_that_do_not_exist(stages: list[int]) -> None:
    with pytest.raises(DaplError, match=r"model\.backbone\.stages: .* resnet18, which has 5: 0 … 4, or −5 … −1"):
        create_backbone("resnet18", stages, weights="random")


# --- vision transformers --------------------------------------------------------------------------------------------

TRANSFORMERS = {"vit_small_patch14_dinov2": 14, "vit_small_patch16_dinov3": 16}


@torch.no_grad()
@pytest.mark.parametrize(("name", "patch"), TRANSFORMERS.items())
def test_transformers_take_any_multiple_of_their_patch(name: str, patch: int) -> None:
    backbone = create_backbone(name, [5, -1, "head"], weights="random", fuse=False).eval()
    assert backbone.stage_channels == (384, 384, 384)
    assert backbone.reduction == patch
    for cells in (2, 5):
        maps = backbone(torch.rand(1, 3, cells * patch, cells * patch))
        assert [tuple(m.shape) for m in maps] == [(1, 384, cells, cells)] * 3
        assert not torch.equal(maps[0], maps[1])
        # The head is the last stage normalised: of each cell, over its channels.
        assert_close(maps[2].mean(1), torch.zeros(1, cells, cells), rtol=0, atol=1e-4)
        assert_close(maps[2].var(1, unbiased=False), torch.ones(1, cells, cells), rtol=0, atol=1e-2)  # ε beside it
    for size in ((2 * patch + 1, 2 * patch), (2 * patch, 3 * patch - 5)):
        with pytest.raises(DaplError, match=rf"image_size: images of .* {name} looks at; give a multiple of {patch}, "):
            backbone(torch.rand(1, 3, *size))


TRANSFORMER_CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "cub200-vit").glob("*.yaml"))


@pytest.mark.parametrize("path", TRANSFORMER_CONFIGS, ids=lambda path: path.stem)
def test_the_configs_of_transformers_take_a_step(path: Path) -> None:
    config = load_config(path, {"model.backbone.weights": "random"})
    model = build_model(config.model, classes=3)
    assert config.data.image_size % model.backbone.patch == 0  # type: ignore[operator,union-attr]
    before = model.prototypes.vectors.detach().clone()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    images = torch.rand(2, 3, 2 * model.backbone.patch, 2 * model.backbone.patch)  # type: ignore[operator]
    F.cross_entropy(model.train()(images).logits, torch.tensor([0, 2])).backward()
    optimizer.step()
    assert not torch.equal(model.prototypes.vectors, before)
    assert model(images).logits.isfinite().all()
