"""The system parts: maps, squares, crops, head dropout and pointers, each against loops or by what must not change."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.features import digest
from dapl.common.errors import DaplError
from dapl.models import Parts, create_backbone
from dapl.models.contract import square_pixels
from dapl.models.parts import Locator, blurred, crop, crop_squares, pooled_under

HEADS, CLASSES, SIDE = 3, 4, 64


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def make(evidence: str = "crop", blur: float = 0.0, magnify: float = 1.0) -> Parts:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False)
    options = {"evidence": evidence, "blur": blur, "magnify": magnify}
    model = Parts(backbone, CLASSES, HEADS, head_dim=5, crop_size=32, **options)  # type: ignore[arg-type]
    return model.requires_grad_(False).eval()


def test_heads_rest_and_background_share_out_every_place() -> None:
    torch.manual_seed(0)
    locator = Locator((6, 8), HEADS)
    stages = (torch.rand(2, 6, 4, 4), torch.rand(2, 8, 2, 2))
    maps = locator(stages)
    assert maps.shape == (2, HEADS + 2, 4, 4)
    assert_close(maps.sum(1), torch.ones(2, 4, 4))
    scaled = locator((stages[0] * 7 + 3, stages[1]))  # neither size nor offset of a place's channels decides
    assert_close(scaled, maps, rtol=1e-3, atol=1e-4)  # layer norm adds 1e-5 to the variance of small values


def test_pooling_by_loop() -> None:
    maps, stage = torch.rand(1, HEADS, 4, 4), torch.rand(1, 5, 2, 2)
    pooled = pooled_under(maps, stage)
    for head in range(HEADS):
        expected, total = torch.zeros(5), 0.0
        for row in range(4):
            for column in range(4):
                weight = float(maps[0, head, row, column])
                expected += weight * stage[0, :, row // 2, column // 2]
                total += weight
        assert_close(pooled[0, head], expected / total)


def test_squares_by_loop() -> None:
    maps = torch.rand(2, HEADS, 5, 7) * 0.1
    maps[1, 0] = 0
    maps[1, 0, 0, 0] = 1  # in a corner: the square is moved into the image
    areas = (0.3, 0.04)
    squares = crop_squares(maps, torch.tensor(areas), side=0.6)

    def near(image: int, head: int, row: int, column: int) -> float:
        """The value with its neighbours; beyond the border stands the border's own."""
        return sum(
            (2 - abs(down))
            * (2 - abs(right))
            / 16
            * float(maps[image, head, min(max(row + down, 0), 4), min(max(column + right, 0), 6)])
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
        )

    for image in range(2):
        side = 0.6 * math.sqrt(areas[image])
        for head in range(HEADS):
            cells = [(r, c, near(image, head, r, c) ** 3) for r in range(5) for c in range(7)]
            total = sum(value for _, _, value in cells)
            x = sum((c + 0.5) / 7 * value for _, c, value in cells) / total
            y = sum((r + 0.5) / 5 * value for r, _, value in cells) / total
            x, y = (min(max(place, side / 2), 1 - side / 2) for place in (x, y))
            assert_close(squares[image, head], torch.tensor([x, y, side]))


def test_a_crop_is_the_square_enlarged(images: Tensor) -> None:
    cut = crop(images, torch.tensor([[[0.5, 0.5, 0.5]], [[0.25, 0.75, 0.5]]]), size=32)
    # A square of half the side, at its own resolution, is sampled at the pixels' centres.
    assert_close(cut[0], images[0, :, 16:48, 16:48], rtol=0, atol=1e-5)
    assert_close(cut[1], images[1, :, 32:, :32], rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_no_pixel_outside_of_the_crop_has_a_say(images: Tensor, seed: int) -> None:
    """With the place held, everything outside of the shown pixels may change: the score changes by exactly 0."""
    model, draw = make(), torch.Generator().manual_seed(seed)
    squares = torch.rand(2, HEADS, 3, generator=draw)
    squares[..., 2] = 0.1 + 0.4 * squares[..., 2]
    squares[..., :2] = squares[..., 2:] / 2 + squares[..., :2] * (1 - squares[..., 2:])
    boxes = square_pixels(squares, SIDE)
    where = torch.rand(2, HEADS, 4, 4, generator=draw)
    for head in range(HEADS):
        other = torch.rand(images.shape, generator=draw)
        for image in range(2):
            left, top, right, bottom = boxes[image, head].tolist()
            other[image, :, top:bottom, left:right] = images[image, :, top:bottom, left:right]
        before, after = (
            model.from_features((model.looker.seen_in(shown, squares), where, squares)) for shown in (images, other)
        )
        own = model.prototypes.group_of == head
        assert torch.equal(before.scores[:, own], after.scores[:, own])
        assert not torch.equal(before.scores[:, ~own], after.scores[:, ~own])  # these heads saw something else


def test_blurring_by_loop() -> None:
    image = torch.rand(1, 3, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    deviation, reach = 0.8, 3
    expected = torch.zeros_like(image)
    for y in range(6):
        for x in range(7):
            total = 0.0
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    weight = math.exp(-(dx**2 + dy**2) / (2 * deviation**2))
                    expected[..., y, x] += weight * image[..., min(max(y + dy, 0), 5), min(max(x + dx, 0), 6)]
                    total += weight
            expected[..., y, x] /= total
    assert_close(blurred(image, deviation), expected)
    pixels = (image * 255).to(torch.uint8)
    assert_close(blurred(pixels, deviation), blurred(pixels.float() / 255, deviation))


def test_heads_locate_in_the_blurred_image_and_look_at_the_sharp_one(images: Tensor) -> None:
    sharp, blurring = make(), make(blur=1.0)
    assert sharp.state_dict().keys() == blurring.state_dict().keys()  # no weight is held twice
    assert sharp.overview is sharp.backbone
    seen, where, squares = blurring.extractor(images)
    _, expected, placed = sharp.extractor(blurred(images, 1.0))
    assert torch.equal(where, expected)
    assert torch.equal(squares, placed)
    assert torch.equal(seen, sharp.looker.seen_in(images, squares))


def test_heads_also_locate_in_the_enlarged_image(images: Tensor) -> None:
    model = make(magnify=1.6)
    assert model.locator.queries[0].in_channels == model.backbone.stage_channels[0]
    whole = F.interpolate(images, (96, 96), mode="bilinear")  # 1.6 · 64 is 102.4; the stage has cells of 16 pixels
    by_hand = (model.backbone(whole)[0], *model.backbone(images))
    assert_close(model.overview(images), by_hand)
    seen, where, squares = model.extractor(images)
    assert where.shape == (2, HEADS, 6, 6)
    owned = model.locator(by_hand)
    assert_close(squares, crop_squares(owned[:, :HEADS], 1 - owned[:, -1].mean((1, 2)), 0.75))
    assert_close(seen, model.looker.seen_in(images, squares))
    assert digest(model.overview) != digest(make(magnify=2.0).overview)  # features of both may be cached


def test_where_the_head_looks_is_the_map(images: Tensor) -> None:
    model = make("map")
    output = model(images)
    maps, where = model.maps(output.embedding), output.embedding.where
    assert where is not None
    assert output.embedding.squares is None
    for j in range(len(model.prototypes)):
        assert_close(maps[:, j], output.scores[:, j, None, None] * where[:, j % HEADS])
        assert torch.equal(output.locations[:, j], where[:, j % HEADS].flatten(1).argmax(1))


def test_head_dropout_leaves_heads_out_and_keeps_the_size() -> None:
    model = make()
    scores = torch.ones(2000, CLASSES * HEADS)
    assert_close(model.classify(scores), torch.full((2000, CLASSES), float(HEADS)))
    model.training, model.head_dropout = True, 0.5
    torch.manual_seed(0)
    logits = model.classify(scores)
    # With equal scores the rest, scaled up, says the same; only where no head was left (1 of 8) there is nothing.
    assert set(logits.unique().tolist()) == {0.0, float(HEADS)}
    assert 0.08 < float((logits[:, 0] == 0).float().mean()) < 0.17  # 0.125 ± 6 deviations of 2,000 draws


def test_pointers_follow_the_layers(images: Tensor) -> None:
    model = make()
    with pytest.raises(DaplError, match="project stage before"):
        model.follow_sources(True)
    embedding = model(images).embedding
    assert embedding.seen is not None
    seen = embedding.seen[torch.arange(len(model.prototypes)) % 2, model.prototypes.group_of]
    model.point_at(seen, torch.ones(len(seen), dtype=torch.bool))
    model.follow_sources(True)
    model.layers.weight.mul_(-1).add_(0.1)
    model.train()
    live = model(images)
    model.eval()
    assert model.prototypes.stand_in is None
    assert_close(model(images).scores, live.scores)  # the vectors are now what the sources were embedded as
    # Prototype j came from image j mod 2, so there it is as similar as can be.
    for j in range(len(model.prototypes)):
        assert_close(model(images).scores[j % 2, j], model.prototypes.scale.detach(), rtol=1e-4, atol=1e-4)


def test_gradient_reaches_the_sources_layers_through_pointers(images: Tensor) -> None:
    model = make()
    model.sources.copy_(torch.rand(model.sources.shape))
    model.follow_sources(True)
    model.layers.requires_grad_(True)
    model.train()
    features = model.looker(images)
    (gradient,) = torch.autograd.grad(model.from_features(features).logits.sum(), model.layers.weight)
    assert gradient.abs().sum() > 0
    assert model.prototypes.vectors.grad is None


def test_the_place_of_a_crop_can_be_learned(images: Tensor) -> None:
    model = make()
    model.locator.requires_grad_(True)
    model(images).logits[:, 0].sum().backward()
    assert all(bool(query.weight.grad.abs().sum() > 0) for query in model.locator.queries)  # type: ignore[union-attr]


def test_a_backbone_that_learns_alone_does_not_move_the_places(images: Tensor) -> None:
    """Its gradient is that of crops where they are, as when they are cut by hand."""
    model = make()
    model.backbone.requires_grad_(True)
    parameters = list(model.backbone.parameters())
    seen, _, squares = model.looker(images)
    assert not squares.requires_grad
    by_hand = model.looker.seen_in(images, squares)
    gradients = (torch.autograd.grad(each.sum(), parameters, allow_unused=True) for each in (seen, by_hand))
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other)


def test_a_deep_cell_sees_all_and_a_crop_its_own_share() -> None:
    assert make("map").field_share(SIDE) == 1.0
    with pytest.raises(DaplError, match="depends on the image"):
        make("crop").field_share(SIDE)
