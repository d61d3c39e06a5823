"""The classes: the functions over batches and over processes."""

from __future__ import annotations

import math
import pickle

import dapl.common.operators

# isort: split
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

import dapl.metrics
from dapl.common.errors import DaplError
from dapl.metrics import functional as C

IMAGES, P, M, K, G, SIDE = 23, 6, 2, 5, 4, 12
UPDATES = {
    "Consistency": ("corresponding", "visible", "prototypes", "kept"),
    "Stability": ("corresponding", "perturbed", "prototypes", "visible", "kept"),
    "Purity": ("scores", "present", "merged_visible", "images", "kept_prototypes"),
    "ObjectOverlap": ("regions", "pixel_masks", "kept"),
    "OutsideInsideRelevanceRatio": ("maps", "masks", "kept"),
    "ExplanationSize": ("scores",),
    "Distinctiveness": ("points", "kept"),
    "Comprehensiveness": ("maps", "pixel_masks", "kept"),
    "Faithfulness": ("before", "blurred", "random", "kept", "alone", "nothing"),
}


def batch() -> dict[str, Tensor]:
    """What an evaluation knows of a few images; scores have many ties, one image no part and one no object."""
    g = torch.Generator().manual_seed(0)
    prototypes = torch.arange(IMAGES).remainder(3).mul(2).unsqueeze(1) + torch.arange(2)
    visible = torch.rand(IMAGES, K, generator=g) < 0.7
    visible[3] = False
    masks = (torch.rand(IMAGES, SIDE, SIDE, generator=g) < 0.4).float()
    masks[4] = 0
    maps = torch.rand(IMAGES, M, SIDE, SIDE, generator=g)
    maps[6, 0] *= 1 - masks[6]  # nothing on the object
    corresponding = (torch.rand(IMAGES, M, K, generator=g) < 0.55) & visible.unsqueeze(1)
    kept_prototypes = torch.tensor([True, True, True, False, True, True]).expand(IMAGES, P)
    before = torch.rand(IMAGES, M, generator=g) + 3
    return {
        "prototypes": prototypes,
        "visible": visible,
        "corresponding": corresponding,
        "perturbed": corresponding & (torch.rand(IMAGES, M, K, generator=g) < 0.9),
        "kept": kept_prototypes.gather(1, prototypes),
        "kept_prototypes": kept_prototypes,
        "scores": torch.randint(0, 4, (IMAGES, P), generator=g).float(),
        "present": torch.rand(IMAGES, P, G, generator=g) < 0.5,
        "merged_visible": torch.rand(IMAGES, G, generator=g) < 0.8,
        "images": torch.randperm(IMAGES, generator=g),
        "regions": torch.rand(IMAGES, M, SIDE, SIDE, generator=g) < 0.1,
        "pixel_masks": masks,
        "maps": maps,
        "points": C.peaks(maps),
        "masks": masks,
        "before": before,
        "blurred": before - torch.rand(IMAGES, M, generator=g),
        "random": before - 0.5 * torch.rand(IMAGES, M, generator=g),
        "alone": before - 2 * torch.rand(IMAGES, M, generator=g),
        "nothing": before - 3,
    }


def fresh() -> dict[str, Metric]:
    return {
        "Consistency": dapl.metrics.Consistency(P, K, threshold=0.7),
        "Stability": dapl.metrics.Stability(P),
        "Purity": dapl.metrics.Purity(P, G, top=4),
        "ObjectOverlap": dapl.metrics.ObjectOverlap(),
        "OutsideInsideRelevanceRatio": dapl.metrics.OutsideInsideRelevanceRatio(),
        "ExplanationSize": dapl.metrics.ExplanationSize(),
        "Distinctiveness": dapl.metrics.Distinctiveness(side=5),
        "Comprehensiveness": dapl.metrics.Comprehensiveness(threshold=0.8),
        "Faithfulness": dapl.metrics.Faithfulness(),
    }


def updated(indices: list[list[int]]) -> dict[str, Metric]:
    """All metrics after one update for each list of images."""
    metrics, everything = fresh(), batch()
    for rows in indices:
        for name, metric in metrics.items():
            metric.update(*(everything[argument][rows] for argument in UPDATES[name]))
    return metrics


def values(metrics: dict[str, Metric]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        fields = value if isinstance(value, dict) else {"": value}
        numbers |= {name + field: number.item() for field, number in fields.items()}
    return numbers


@pytest.fixture(scope="module")
def whole() -> dict[str, float]:
    return values(updated([list(range(IMAGES))]))


def assert_same(got: dict[str, float], wanted: dict[str, float]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        assert value == pytest.approx(wanted[name], abs=1e-6), name


def test_equal_to_the_functions_on_everything(whole) -> None:
    b = batch()
    hits, seen = C.count_parts(b["corresponding"], b["visible"], b["prototypes"], P, b["kept"])
    assert whole["Consistency"] == pytest.approx(C.consistency(hits, seen, 0.7).item())
    stable = C.count_stable(b["corresponding"], b["perturbed"], b["prototypes"], P, b["visible"], b["kept"])
    assert whole["Stability"] == pytest.approx(C.stability(*stable).item())
    overlap = C.object_overlap(b["regions"], b["pixel_masks"], b["kept"])
    per_image = [mean(row) for row in overlap.tolist()]
    assert whole["ObjectOverlap"] == pytest.approx(mean(per_image), abs=1e-6)
    oirr = C.outside_inside_relevance_ratio(b["maps"], b["masks"], b["kept"]).flatten()
    assert whole["OutsideInsideRelevanceRatio"] == pytest.approx(oirr[oirr.isfinite()].mean().item(), abs=1e-6)
    assert whole["ExplanationSize"] == pytest.approx(C.explanation_size(b["scores"]).float().mean().item())
    loss = C.faithfulness(*(b[name] for name in UPDATES["Faithfulness"]))
    for field, value in loss._asdict().items():
        assert whole[f"Faithfulness{field}"] == pytest.approx(value.item(), abs=1e-6)
    distinct = C.distinctiveness(b["points"], 5, b["kept"])
    assert whole["Distinctiveness"] == pytest.approx(mean(distinct.tolist()), abs=1e-6)
    shown = C.comprehensiveness(b["maps"], b["pixel_masks"].bool(), None, 0.8, b["kept"])
    assert whole["Comprehensiveness"] == pytest.approx(mean(shown.tolist()), abs=1e-6)
    assert 0 < whole["Distinctiveness"] < 1
    assert 0 < whole["Comprehensiveness"] < 1
    assert 0 < whole["Consistency"] < 1
    assert 0 < whole["Stability"] < 1


def mean(numbers: list[float]) -> float:
    real = [number for number in numbers if not math.isnan(number)]
    return sum(real) / len(real) if real else math.nan


def test_purity_over_batches_is_that_of_all_images_at_once(whole) -> None:
    b = batch()
    order = b["images"].argsort()
    chosen = order[C.top_images(b["scores"][order], 4)]
    present, visible = b["present"][chosen, torch.arange(P)[:, None]], b["merged_visible"][chosen]
    purities = C.purity(present, visible)
    metric = updated([[i] for i in range(IMAGES)])["Purity"]
    assert isinstance(metric, dapl.metrics.Purity)
    got = metric.per_prototype()
    assert got[3].isnan()  # pruned
    others = torch.arange(P) != 3
    torch.testing.assert_close(got[others], purities[others])
    assert whole["Purity"] == pytest.approx(purities[others].mean().item())


def test_batches_of_any_size_and_order_give_the_same(whole) -> None:
    assert_same(values(updated([[0], [3], [1, 2, 4, 5, 6, 7], list(range(8, IMAGES))])), whole)
    assert_same(values(updated([list(range(IMAGES - 1, 9, -1)), list(range(10))])), whole)


def test_merging_tables_is_what_processes_do(whole) -> None:
    """The reduction of the purity's state, without processes: associative, and the order does not matter."""
    tables = [updated([[i for i in range(IMAGES) if i % 3 == rank]])["Purity"].best for rank in range(3)]
    table = dapl.metrics.Purity(P, G, top=4).table
    for order in ((0, 1, 2), (2, 0, 1)):
        merged = table.merge(torch.stack([tables[rank] for rank in order]))
        assert table.purity(merged).nanmean().item() == pytest.approx(whole["Purity"])
    stepwise = table.merge(torch.stack([table.merge(torch.stack(tables[:2])), tables[2]]))
    assert torch.equal(stepwise[others_filled(stepwise)], merged[others_filled(merged)])


def others_filled(table: Tensor) -> Tensor:
    return table[..., 0] > -torch.inf


def test_a_collection_is_fed_by_name_and_keeps_metrics_apart(whole) -> None:
    names = ("Consistency", "Stability", "ObjectOverlap", "OutsideInsideRelevanceRatio", "ExplanationSize")
    metrics = MetricCollection({name: fresh()[name] for name in names})
    everything = batch() | {"contributions": batch()["scores"]}
    metrics.update(**everything)
    got = {name: value.item() for name, value in metrics.compute().items()}
    assert_same(got, {name: whole[name] for name in names})
    assert all(len(group) == 1 for group in metrics.compute_groups.values())


def test_state_does_not_grow_and_survives() -> None:
    metrics = updated([[i] for i in range(IMAGES)])
    for metric in metrics.values():
        for name, default in metric._defaults.items():
            state = getattr(metric, name)
            assert isinstance(state, Tensor)
            assert state.shape == default.shape
            assert state.dtype == default.dtype
    assert values(pickle.loads(pickle.dumps(metrics))) == values(metrics)
    for metric in metrics.values():
        metric.reset()
    everything = batch()
    for name, metric in metrics.items():
        metric.update(*(everything[argument] for argument in UPDATES[name]))
    assert_same(values(metrics), values(updated([list(range(IMAGES))])))


def test_forward_gives_the_batch_and_adds_it(whole) -> None:
    everything = batch()
    for name, metric in fresh().items():
        for rows in (list(range(9)), list(range(9, IMAGES))):
            metric(*(everything[argument][rows] for argument in UPDATES[name]))
        got = values({name: metric})
        assert_same(got, {key: whole[key] for key in got})


def test_nothing_seen_is_nan() -> None:
    metric = dapl.metrics.ObjectOverlap()
    metric.update(torch.ones(1, 2, 4, 4).bool(), torch.zeros(1, 4, 4))
    assert metric.compute().isnan()
    metric = dapl.metrics.OutsideInsideRelevanceRatio()
    metric.update(torch.ones(1, 2, 4, 4), torch.zeros(1, 4, 4))
    assert metric.compute().isnan()
    assert metric.oirr_infinite == 0
    metric = dapl.metrics.Consistency(2, 1)
    metric.update(torch.zeros(1, 2, 1).bool(), torch.zeros(1, 1).bool(), torch.tensor([[0, 1]]))
    assert metric.compute().isnan()
    metric = dapl.metrics.Purity(1, 1)
    metric.update(torch.rand(2, 1), torch.zeros(2, 1, 1).bool(), torch.zeros(2, 1).bool(), torch.arange(2))
    assert metric.compute().isnan()


def test_one_infinite_ratio_is_counted_not_averaged() -> None:
    metric = updated([list(range(IMAGES))])["OutsideInsideRelevanceRatio"]
    assert metric.oirr_infinite == 1
    assert metric.compute().isfinite()


def test_direction_and_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    better = {"OutsideInsideRelevanceRatio": False, "ExplanationSize": False, "ObjectOverlap": None}
    for name, metric in updated([list(range(IMAGES))]).items():
        assert metric.higher_is_better is better.get(name, True)
        assert metric.plot() is not None
        pyplot.close("all")


def test_a_refused_batch_leaves_no_trace() -> None:
    for metric, arguments in (
        (dapl.metrics.Consistency(P, 3), (batch()["corresponding"], batch()["visible"], batch()["prototypes"])),
        (dapl.metrics.Purity(2, G), tuple(batch()[name] for name in UPDATES["Purity"])),
    ):
        before = {name: getattr(metric, name).clone() for name in metric._defaults}
        with pytest.raises(DaplError, match="made for"):
            metric.update(*arguments)
        for name, state in before.items():
            assert torch.equal(getattr(metric, name), state)
