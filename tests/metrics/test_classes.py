"""The classes: means of the functions over batches and over processes."""

from __future__ import annotations

import pickle

import dapl.common.operators  # noqa: F401  (before torchmetrics)

# isort: split
import pytest
import torch
from torchmetrics import Metric, MetricCollection

from dapl.common.errors import DaplError
from dapl.metrics import (
    BackgroundBias,
    Coverage,
    Diversity,
    Imbalance,
    PartAssignment,
    PartPrecision,
    PartRecall,
    Redundancy,
    RegionBackgroundShare,
)
from dapl.metrics import functional as F

IMAGES, P, K, SIDE = 23, 4, 5, 12


def batch() -> dict[str, torch.Tensor]:
    """What `dapl evaluate` knows of a few images, among them one without visible parts and one without prototypes."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(IMAGES, P, 3, 3, generator=generator)
    parts = torch.rand(IMAGES, K, SIDE, SIDE, generator=generator) < 0.05
    visible = torch.rand(IMAGES, K, generator=generator) < 0.7
    kept = torch.rand(IMAGES, P, generator=generator) < 0.8
    visible[3], kept[5], maps[7] = False, False, 0.0
    regions = F.activation_regions(maps, SIDE, 80)
    visible = F.visible_parts(parts, visible)
    return {
        "maps": maps,
        "masks": torch.rand(IMAGES, 3, 3, generator=generator),
        "pixel_masks": torch.rand(IMAGES, SIDE, SIDE, generator=generator),
        "regions": regions,
        "assigned": F.assign(F.overlap(regions, parts), 0.3, visible, kept),
        "visible": visible,
        "kept": kept,
    }


def collection() -> MetricCollection:
    metrics: dict[str, Metric] = {"assignment": PartAssignment(K, P)}
    for scope in ("image", "dataset"):
        for metric in (Coverage, PartPrecision, PartRecall, BackgroundBias, RegionBackgroundShare):
            metrics[f"{metric.__name__} {scope}"] = metric(scope)
        for metric in (Diversity, Redundancy, Imbalance):
            metrics[f"{metric.__name__} {scope}"] = metric(scope, num_parts=K)
    return MetricCollection(metrics)


def values(metrics: MetricCollection) -> dict[str, list[float] | float]:
    return {name: value.nan_to_num(-1).tolist() for name, value in metrics.compute().items()}


def updated(indices: list[list[int]]) -> MetricCollection:
    """All metrics after one update for each list of images."""
    metrics, everything = collection(), batch()
    for rows in indices:
        metrics.update(**{name: tensor[rows] for name, tensor in everything.items()})
    return metrics


@pytest.fixture(scope="module")
def whole() -> dict[str, list[float] | float]:
    return values(updated([list(range(IMAGES))]))


def assert_same(got: dict, wanted: dict) -> None:
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(wanted[name]), msg=name)


def mean(numbers: torch.Tensor) -> float:
    return numbers[~numbers.isnan()].double().mean().item()


def test_scope_image_is_the_mean_of_the_functions(whole) -> None:
    b = batch()
    a, v, k = b["assigned"], b["visible"], b["kept"]
    has_parts = v.any(-1)
    assert (~has_parts).sum() >= 1
    wanted = {
        "Coverage": F.coverage(a, v, k),
        "PartPrecision": F.precision(a, v, k),
        "PartRecall": F.recall(a, v, k),
        "Diversity": F.diversity(b["regions"], a, v, k),
        "Redundancy": F.redundancy(b["regions"], a, v, k)[has_parts],
        "Imbalance": F.imbalance(a, v, k),
        "BackgroundBias": F.background_bias(b["maps"], b["masks"], k).nanmean(-1),
        "RegionBackgroundShare": F.region_background_share(b["regions"], b["pixel_masks"], k).nanmean(-1),
    }
    for name, numbers in wanted.items():
        assert whole[f"{name} image"] == pytest.approx(mean(numbers), abs=1e-6), name


def test_scope_dataset_pools_the_assignments(whole) -> None:
    b = batch()
    hit = prototypes = captured = parts = 0
    on_part, seen = [0] * K, [0] * K
    ious: list[list[float]] = [[] for _ in range(K)]
    for a, v, kept, regions in zip(b["assigned"], b["visible"], b["kept"], b["regions"], strict=True):
        if not v.any():
            continue
        iou = F.iou(regions)
        hit += sum(bool(a[j].any()) for j in range(P))
        prototypes += int(kept.sum())
        for k in range(K):
            on = [j for j in range(P) if a[j, k]]
            parts, captured = parts + int(v[k]), captured + bool(on)
            on_part[k], seen[k] = on_part[k] + len(on), seen[k] + int(v[k])
            ious[k] += [iou[i, j].item() for i in on for j in on if i < j]
    precision, recall = hit / prototypes, captured / parts
    assert whole["PartPrecision dataset"] == pytest.approx(precision)
    assert whole["PartRecall dataset"] == pytest.approx(recall)
    assert whole["Coverage dataset"] == pytest.approx(2 * precision * recall / (precision + recall))
    redundant = [sum(x) / len(x) for x in ious if x]
    rates = [c / n for c, n in zip(on_part, seen, strict=True)]
    gini = sum(abs(x - y) for x in rates for y in rates) / (2 * K * sum(rates))
    assert whole["Redundancy dataset"] == pytest.approx(sum(redundant) / len(redundant), abs=1e-6)
    assert whole["Imbalance dataset"] == pytest.approx(gini, abs=1e-6)
    bias = F.background_bias(b["maps"], b["masks"], b["kept"])
    assert whole["BackgroundBias dataset"] == pytest.approx(mean(bias.flatten()), abs=1e-6)


def test_parts_and_heads(whole) -> None:
    b = batch()
    for k in range(K):
        for h in range(P):
            seen = sum(bool(v[k] and kept[h]) for v, kept in zip(b["visible"], b["kept"], strict=True))
            assert whole["assignment"][k][h] == pytest.approx(b["assigned"][:, h, k].sum().item() / seen)


def test_batches_of_any_size_give_the_same(whole) -> None:
    split = values(updated([[0], [3], [1, 2, 4, 5, 6, 7], list(range(8, IMAGES))]))
    assert_same(split, whole)


def test_images_without_visible_parts_are_counted() -> None:
    metric = Coverage()
    metric.update(**{name: batch()[name] for name in ("assigned", "visible", "kept")})
    skipped = (~batch()["visible"].any(-1)).sum()
    assert metric.skipped == skipped
    assert metric.images == IMAGES - skipped


@pytest.mark.parametrize("scope", ["image", "dataset"])
def test_nothing_visible_at_all_is_nan(scope) -> None:
    b = {name: tensor[3:4] for name, tensor in batch().items()}
    a, v = b["assigned"], b["visible"]
    for metric in (Coverage(scope), PartPrecision(scope)):
        metric.update(a, v)
        assert metric.compute().isnan()
    for metric in (Diversity(scope, K), Redundancy(scope, K)):
        metric.update(b["regions"], a, v)
        assert metric.compute().isnan()
    bias = BackgroundBias(scope)
    bias.update(torch.zeros(1, 2, 3, 3), torch.ones(1, 3, 3))
    assert bias.compute().isnan()
    assert bias.skipped == 1


def test_projection_is_a_row_a_class() -> None:
    """Two classes, each prototype on its own image: the protocol that docs/metrics.md describes."""
    classes = 2
    regions = torch.rand(classes * P, 1, 6, 6) < 0.4
    parts, visible = torch.rand(classes * P, K, 6, 6) < 0.3, torch.ones(classes * P, K).bool()
    visible = F.visible_parts(parts, visible)
    assigned = F.assign(F.overlap(regions, parts), 0.2, visible).view(classes, P, K)
    metric = Diversity("projection")
    images = torch.arange(classes * P).view(classes, P)
    metric.update(regions.view(classes, P, 6, 6), assigned, visible.view(classes, P, K).any(1), images=images)
    imbalance = F.imbalance(assigned, visible.view(classes, P, K).any(1))
    assert metric.compute().item() == pytest.approx((1 - imbalance / 2).mean().item())  # no two share an image


def test_a_collection_shares_the_work() -> None:
    metrics = updated([[0, 1], [2]])
    groups = {frozenset(group) for group in metrics.compute_groups.values()}
    assert (
        frozenset(f"{n} {s}" for n in ("Coverage", "PartPrecision", "PartRecall") for s in ("image", "dataset"))
        in groups
    )
    assert not any({"BackgroundBias image", "RegionBackgroundShare image"} <= group for group in groups)


def test_two_backgrounds_are_never_taken_for_one() -> None:
    """Both are 0 in the first batch: a collection that compared the numbers alone would drop one of them."""
    metrics = MetricCollection([BackgroundBias(), RegionBackgroundShare()])
    maps, ones = torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4)
    for masks in (ones, 0 * ones):
        metrics.update(maps=maps, masks=masks, regions=maps > 0.5, pixel_masks=ones)
    got = metrics.compute()
    assert got["BackgroundBias"].item() == pytest.approx(0.5)
    assert got["RegionBackgroundShare"] == 0


def test_state_does_not_grow_and_survives() -> None:
    metrics = updated([[i] for i in range(IMAGES)])
    for metric in metrics.values():
        for name in metric._defaults:
            assert isinstance(getattr(metric, name), torch.Tensor)
            assert getattr(metric, name).shape == metric._defaults[name].shape
    again = pickle.loads(pickle.dumps(metrics))
    assert values(again) == values(metrics)


def test_reset_in_inference_mode_then_update_outside() -> None:
    metric = Coverage()
    with torch.inference_mode():
        metric.reset()
    metric.update(torch.ones(1, 2, 2).bool())
    assert metric.compute() == 1
    assert metric(torch.zeros(1, 2, 2).bool()) == 0  # forward gives the number of the batch,
    assert metric.compute() == 0.5  # and still adds it


def test_direction_bounds_and_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = updated([list(range(IMAGES))])
    for name, metric in metrics.items():
        better = {"Coverage": True, "PartPrecision": True, "PartRecall": True, "Diversity": True, "assignment": None}
        assert metric.higher_is_better is better.get(name.split()[0], False)
        assert (metric.plot_lower_bound, metric.plot_upper_bound) == (0, 1)
        figure, _ = metric.plot()
        assert figure is not None
        pyplot.close(figure)
    names = ["beak", "crown", "tail", "left wing", "right wing"]
    _, axes = PartAssignment(K, P, names).plot(torch.rand(K, P))
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    pyplot.close("all")


BAD_INPUT = {
    "scope": (lambda: Coverage("class"), "scope must be one of image, dataset, projection"),
    "dataset without parts": (lambda: Diversity("dataset"), "num_parts"),
    "other parts": (
        lambda: Diversity("dataset", 3).update(torch.ones(2, 4, 4).bool(), torch.ones(2, 5).bool()),
        "made for 3 parts, but the batch has 5",
    ),
    "other heads": (lambda: PartAssignment(5, 3).update(torch.ones(2, 5).bool()), "made for 3 heads"),
    "names of parts": (lambda: PartAssignment(5, 3, ["beak"]), "made for 5 parts"),
    "not assignments": (lambda: Coverage().update(torch.rand(2, 3)), "assigned must be boolean"),
}


def test_a_refused_batch_leaves_no_trace() -> None:
    metric = Diversity("dataset", 3)
    with pytest.raises(DaplError):
        metric.update(torch.ones(2, 4, 4).bool(), torch.ones(2, 5).bool())
    assert metric.images == 0
