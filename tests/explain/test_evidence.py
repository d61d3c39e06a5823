"""The arithmetic and the regions of explanations, for every registered system that has prototypes."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from pydantic import TypeAdapter
from tests.metrics.test_regions import slow_region
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.common.errors import DaplError
from dapl.config import ModelConfig
from dapl.explain.evidence import Evidence, _strongest, explain, explanations, logits_of, run_pass
from dapl.explain.parts import ImageFacts, ModelRecords, heat_of
from dapl.models.build import SYSTEMS, build_model
from dapl.models.contract import PrototypeModel, square_pixels
from dapl.models.dapl import Dapl
from dapl.models.parts import Parts
from dapl.runs.checkpoint import fresh_records
from dapl.runs.outlines import lines_of
from dapl.runs.schemas import PrototypeLook, PrototypeRecord

C, SIZE = 4, 64
NAMES = ("ant", "bee", "cat", "dog")
SMALL: dict[str, dict[str, Any]] = {"dapl": {"heads": 3, "head_dim": 4}}


@cache
def _built(system: str) -> PrototypeModel:
    name = "test_mambaout" if system == "dapl" else "test_efficientnet"
    backbone = {"name": name, "weights": "random", "stages": [-2]}
    config: Any = TypeAdapter(ModelConfig).validate_python(
        {"system": system, "backbone": backbone, **SMALL.get(system, {})}
    )
    model = build_model(config, C, seed=3).eval().requires_grad_(False)
    if isinstance(model, Dapl):  # or every place would take its values from everywhere, and maps would be flat
        model.attention.query.weight.mul_(40)
    for parameter in model.components()["classifier"].parameters() if "classifier" in model.components() else ():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


SILENT = ["blackbox"]  # not found by building all of them: this is read in each worker before any test runs
EXPLAINABLE = [name for name in sorted(SYSTEMS) if name not in SILENT]


@pytest.fixture(params=EXPLAINABLE)
def model(request: pytest.FixtureRequest) -> PrototypeModel:
    """A copy, so that a test may change it."""
    return copy.deepcopy(_built(request.param))


@pytest.fixture
def dapl() -> PrototypeModel:
    return copy.deepcopy(_built("dapl"))


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def known(model: PrototypeModel) -> ModelRecords:
    return ModelRecords(NAMES, fresh_records(model, NAMES))


@pytest.mark.parametrize("pruned", [[], [0, 5]])
@pytest.mark.parametrize("top", [2, 1000])
def test_contributions_sum_to_the_logit(model: PrototypeModel, images: Tensor, top: int, pruned: list[int]) -> None:
    model.prototypes.kept[pruned] = False
    weights, output = model.class_weights(), model(images)
    for row, found in enumerate(explanations(model, run_pass(model, images), known(model), top=top)):
        assert_close(found.logits, output.logits[row].double(), rtol=0, atol=1e-4)
        assert found.predicted == int(output.logits[row].argmax())
        assert len(found.classes) == 2
        for evidence in found.classes:
            assert evidence.total == pytest.approx(float(output.logits[row, evidence.index]), abs=1e-4)
            assert evidence.logit == pytest.approx(evidence.total, abs=1e-9)
            for one in evidence.rows:
                assert one.similarity == pytest.approx(float(output.scores[row, one.prototype]))
                assert one.weight == pytest.approx(float(weights[one.prototype, evidence.index]))
                assert one.contribution == pytest.approx(one.similarity * one.weight)
                assert one.prototype not in pruned
            counting = int((weights[:, evidence.index] != 0).sum())
            assert len(evidence.rows) == min(top, counting)
            assert evidence.rest.prototypes == counting - len(evidence.rows)


def test_the_strongest_are_listed_first(model: PrototypeModel, images: Tensor) -> None:
    found = explain(model, images[0], known(model), top=4)
    everything = explain(model, images[0], known(model), top=1000)
    for few, many in zip(found.classes, everything.classes, strict=True):
        sizes = [abs(row.contribution) for row in many.rows]
        assert sizes == sorted(sizes, reverse=True)
        assert [row.prototype for row in few.rows] == [row.prototype for row in many.rows[:4]]


def test_only_some_prototypes_may_be_listed(model: PrototypeModel, images: Tensor) -> None:
    everything = explain(model, images[0], known(model), top=1000)
    some = [row.prototype for row in everything.classes[0].rows][1::2]
    found = explain(model, images[0], known(model), top=1000, among=some)
    for few, many in zip(found.classes, everything.classes, strict=True):
        rows = [row for row in many.rows if row.prototype in some]
        assert [(row.prototype, row.outline, row.contribution) for row in few.rows] == [
            (row.prototype, row.outline, row.contribution) for row in rows
        ]
        total = sum(row.contribution for row in many.rows) + many.rest.contribution
        assert sum(row.contribution for row in few.rows) + few.rest.contribution == pytest.approx(total)


def test_a_prototype_that_says_nothing_comes_before_one_that_has_no_say() -> None:
    assert _strongest(np.array([0.0, 0.0, -5.0]), np.array([0.0, 1.0, -1.0]), top=9) == [2, 1]


def test_predicted_and_runner_up_or_what_was_asked_for(model: PrototypeModel, images: Tensor) -> None:
    order = model(images[:1]).logits[0].argsort(descending=True).tolist()
    found = explain(model, images[0], known(model))
    assert [evidence.index for evidence in found.classes] == order[:2]
    assert [evidence.name for evidence in found.classes] == [NAMES[c] for c in order[:2]]
    assert (found.predicted, found.runner_up, found.predicted_name) == (order[0], order[1], NAMES[order[0]])
    asked = explain(model, images[0], known(model), classes=[order[3]])
    assert [evidence.index for evidence in asked.classes] == [order[3]]
    assert_close(found.probabilities.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_switching_off_removes_exactly_the_contribution(model: PrototypeModel, images: Tensor) -> None:
    before = explain(model, images[0], known(model), classes=[0, 1], top=1000)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    row = before.classes[0].rows[1]
    after = explain(model, images[0], known(model), classes=[0, 1], top=1000, switched_off=[row.prototype])
    for old, new in zip(before.classes, after.classes, strict=True):
        removed = sum(one.contribution for one in old.rows if one.prototype == row.prototype)
        assert new.logit == pytest.approx(old.logit - removed, abs=1e-9)
        assert new.total == pytest.approx(new.logit, abs=1e-9)
        assert [one.prototype for one in new.rows] == [one.prototype for one in old.rows]  # rows do not jump
    gone = after.classes[0].rows[1]
    assert (gone.switched_off, gone.contribution, gone.similarity) == (True, 0.0, row.similarity)
    assert after.switched_off == (row.prototype,)
    assert not any(one.switched_off for one in before.classes[0].rows)
    model.prototypes.kept[row.prototype] = False  # as pruning would have it
    assert_close(after.logits, model(images[:1]).logits[0].double(), rtol=0, atol=1e-4)
    model.load_state_dict(state)
    assert_close(before.logits, model(images[:1]).logits[0].double(), rtol=0, atol=1e-4)  # the model was left alone


def region_of(model: PrototypeModel, row: Evidence) -> Tensor:
    """bool S×S."""
    bicubic = type(model).to_pixels is PrototypeModel.to_pixels
    heat = model.to_pixels(row.map.double()[None], (SIZE, SIZE))[0] if bicubic else row.heat
    assert float(row.map.max() - row.map.min()) > 1e-3 * float(row.map.abs().max()), "not a flat map"
    number = SIZE * SIZE - math.ceil(0.95 * (SIZE * SIZE - 1))
    return slow_region(heat, number, float(row.map.abs().max()) if bicubic else None)


def test_maps_regions_and_places(model: PrototypeModel, images: Tensor) -> None:
    found = explain(model, images[0], known(model), top=3)
    for row in (row for evidence in found.classes for row in evidence.rows):
        expected = model.activation_maps(images[:1], torch.tensor([row.prototype]))[0, 0]
        assert_close(row.map, expected, rtol=1e-4, atol=1e-4)
        assert float(row.map[row.location]) == pytest.approx(row.similarity, abs=1e-3)
        heat = model.to_pixels(row.map[None], (SIZE, SIZE))[0]
        assert_close(heat_of(model, row.map[None], SIZE)[0], heat, rtol=1e-4, atol=1e-4)
        assert row.heat.shape[0] <= SIZE
        fine = torch.nn.functional.interpolate(row.heat[None, None], (SIZE, SIZE), mode="bilinear")[0, 0]
        assert float((fine - heat).abs().mean()) < 0.05 * float(heat.max() - heat.min())
        rows, columns = np.nonzero(region_of(model, row).numpy())
        box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        squares = model(images[:1]).embedding.squares
        assert row.box == (box if squares is None else tuple(square_pixels(squares[0, row.head], SIZE).tolist()))
        assert row.head == int(model.prototypes.group_of[row.prototype])


def test_attention_of_the_winning_place(model: PrototypeModel, images: Tensor) -> None:
    found = explain(model, images[0], known(model), top=3)
    rows = [row for evidence in found.classes for row in evidence.rows]
    if not isinstance(model, Dapl):
        assert all(row.attention is None for row in rows)
        return
    weights = model.attention_weights(model.backbone(images[:1]))[0]  # N×HW×HW
    width = rows[0].map.shape[1]
    for row in rows:
        assert row.attention is not None
        place = row.location[0] * width + row.location[1]
        assert_close(row.attention.flatten(), weights[row.head, place])
        assert float(row.attention.sum()) == pytest.approx(1, abs=1e-5)


def test_one_backbone_pass_however_much_is_explained(model: PrototypeModel, images: Tensor) -> None:
    model.to_pixels(model.activation_maps(images[:1]), (SIZE, SIZE))  # PixPNet finds its receptive fields, once
    passes: list[int] = []
    model.backbone.register_forward_hook(lambda module, inputs, output: passes.append(len(inputs[0])))
    explain(model, images[0], known(model), top=1000)
    crops = [1, model.heads] if isinstance(model, Parts) else [1]  # its heads see crops, all in one pass more
    assert passes == crops
    seen = run_pass(model, images)
    explanations(model, seen, known(model))
    explanations(model, seen, known(model), classes=[[3]] * 3, switched_off=[1])
    logits_of(model, seen, [0])
    assert passes == crops + [3 * number for number in crops]


def test_a_batch_is_its_images(model: PrototypeModel, images: Tensor) -> None:
    together = explanations(model, run_pass(model, images), known(model), top=3)
    for image, found in zip(images, together, strict=True):
        alone = explain(model, image, known(model), top=3)
        assert_close(found.logits, alone.logits, rtol=1e-4, atol=1e-4)
        for one, other in zip(found.classes[0].rows, alone.classes[0].rows, strict=True):
            assert (one.prototype, one.location, one.of) == (other.prototype, other.location, other.of)
            assert_close(one.map, other.map, rtol=1e-3, atol=1e-3)
            assert (one.attention is None) == (other.attention is None)
            if one.attention is not None:
                assert_close(one.attention, other.attention, rtol=1e-4, atol=1e-6)


def test_a_shared_prototype_names_its_classes(images: Tensor) -> None:
    model = copy.deepcopy(_built("protopnet" if "protopnet" in EXPLAINABLE else "dapl"))
    model.prototypes.add_classes(0, [2])
    found = explain(model, images[0], known(model), classes=[2], top=1000)
    row = next((row for row in found.classes[0].rows if row.prototype == 0), None)
    assert row is not None
    assert row.of == ("ant", "cat")
    assert row.own
    for other in found.classes[0].rows:
        assert other.own == bool(model.prototypes.membership[other.prototype, 2])


@pytest.mark.parametrize("system", SILENT)
def test_a_model_without_prototypes_is_refused(system: str, images: Tensor) -> None:
    model = _built(system)
    with pytest.raises(DaplError, match="no prototypes"):
        explain(model, images[0], ModelRecords(NAMES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [4]}, "no class 4; the model has 4"),
        ({"classes": [-1]}, "no class -1"),
        ({"top": 0}, "top is 0"),
        ({"switched_off": [99]}, "no prototype 99; the model has 12"),
        ({"switched_off": [-1]}, "no prototype -1"),
    ],
)
def test_what_is_not_there_is_said(dapl: PrototypeModel, images: Tensor, options: Any, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        explain(dapl, images[0], known(dapl), **options)


def half(left: bool) -> Tensor:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[:, : SIZE // 2] = left
    mask[:, SIZE // 2 :] = not left
    return mask


def test_parts_and_background_of_an_annotated_image(dapl: PrototypeModel, images: Tensor) -> None:
    everywhere = torch.ones(1, SIZE, SIZE, dtype=torch.bool)
    parts = torch.cat((everywhere, half(True)[None]))
    facts = ImageFacts(half(True), parts, torch.tensor([False, True]), ("hidden", "wing"))
    rows = explain(dapl, images[0], known(dapl), top=1000, facts=facts).classes[0].rows
    for row in rows:
        region = region_of(dapl, row)
        on_left = float((region & half(True)).sum() / region.sum())
        assert row.foreground == pytest.approx(on_left, abs=1e-6)
        # the part is half of the image, of which a region of 5 % of the pixels never covers a fifth
        assert (row.here, row.part) == (None, None)
    tiny = torch.zeros(1, SIZE, SIZE, dtype=torch.bool)
    y, x = divmod(int(heat_of(dapl, rows[0].map[None], SIZE).argmax()), SIZE)
    tiny[0, y, x] = True
    pointed = ImageFacts(None, tiny, torch.tensor([True]), ("eye",))
    again = explain(dapl, images[0], known(dapl), top=1000, facts=pointed).classes[0].rows
    assert again[0].here == "eye"
    assert all(row.here in ("eye", None) for row in again)
    assert again[0].foreground is None


def test_the_outline_is_that_of_the_region(dapl: PrototypeModel, images: Tensor) -> None:
    for row in explain(dapl, images[0], known(dapl), top=1000).classes[0].rows:
        assert row.outline is not None
        region, drawn = region_of(dapl, row), Image.new("1", (SIZE, SIZE))
        for line in lines_of(row.outline):
            ImageDraw.Draw(drawn).polygon([(x - 0.5, y - 0.5) for x, y in line], fill=1)
        filled = torch.from_numpy(np.array(drawn))
        assert float((filled & region).sum() / (filled | region).sum()) > 0.7
        left, top, right, bottom = row.view
        assert right - left == bottom - top <= SIZE


def test_names_and_background_are_those_that_were_measured(dapl: PrototypeModel, images: Tensor) -> None:
    looks = [PrototypeLook(j, 0.4 if j % 2 else 0.8, {"wing": 0.75} if j % 2 else {}) for j in range(12)]
    records = [PrototypeRecord(j, [], 0, foreground_share=0.9) for j in range(12)]
    found = explain(dapl, images[0], ModelRecords(NAMES, records, looks), top=1000).classes[0]
    for row in found.rows:
        assert row.part == ("wing 75 %" if row.prototype % 2 else None)
        assert row.background == bool(row.prototype % 2)
    shares = [1 - looks[row.prototype].on_object for row in found.rows]  # type: ignore[operator]
    weights = [max(0.0, row.contribution) for row in found.rows]
    expected = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(weights)
    assert found.background == pytest.approx(expected)
    beside = [PrototypeLook(j, 0.1) for j in range(12)]
    assert "off the object" in (explain(dapl, images[0], ModelRecords(NAMES, records, beside)).warning or "")


def test_one_colour_per_head(dapl: PrototypeModel, images: Tensor) -> None:
    rows = [row for one in explain(dapl, images[0], known(dapl), top=1000).classes for row in one.rows]
    assert len({(row.head, row.colour) for row in rows}) == len({row.head for row in rows}) > 1


def test_a_model_of_one_class_has_no_runner_up(images: Tensor) -> None:
    config: Any = TypeAdapter(ModelConfig).validate_python(
        {"system": "dapl", "backbone": {"name": "test_efficientnet", "weights": "random"}, "heads": 2, "head_dim": 4}
    )
    model: nn.Module = build_model(config, 1).eval()
    found = explain(model, images[0], ModelRecords(["only"]))  # type: ignore[arg-type]
    assert found.runner_up is None
    assert len(found.classes) == 1
