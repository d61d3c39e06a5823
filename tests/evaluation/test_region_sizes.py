"""`evaluate` with regions of other sizes, and the numbers that noise cannot win, against one image at a time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.data.build import build_splits
from dapl.evaluation import EvaluationProtocol, evaluate, table
from dapl.metrics import functional as F
from dapl.runs.loading import load_run

NAMES = ("one_to_one_coverage", "parts_per_prototype", "islands", "island_coverage", "island_diversity")


@torch.no_grad()
def slowly(folder: Path, region: str) -> dict[str, float]:
    """Straight from the data set through the public functions."""
    loaded = load_run(folder)
    test, rows, hits, seen = build_splits(loaded.config.data).test, [], [], []
    _, groups = F.merge_left_right(list(test.parts))
    for index in range(len(test)):
        sample = test[index]
        named, _ = loaded.model.prototypes_of(torch.tensor([sample.label]))
        maps = loaded.model.activation_maps(sample.image.as_subclass(Tensor).unsqueeze(0), named[0])[0]
        assert sample.part_masks is not None
        assert sample.mask is not None
        parts = sample.part_masks.as_subclass(Tensor).bool()
        visible = F.visible_parts(parts)
        area = sample.mask.as_subclass(Tensor).bool().sum().view(1)
        regions = F.mass_regions(maps, 64, 0.2) if region == "mass" else F.object_regions(maps, area, 64, 0.3)
        number, largest = F.islands(regions)
        assigned, islands = (F.assign(F.overlap(one, parts), 0.2, visible) for one in (regions, largest))
        rows.append(
            {
                "one_to_one_coverage": F.one_to_one_coverage(assigned, visible),
                "parts_per_prototype": F.parts_per_prototype(assigned, visible),
                "islands": number.float().where(number > 0, torch.nan).nanmean(),
                "island_coverage": F.coverage(islands, visible),
                "island_diversity": F.diversity(largest, islands, visible),
            }
        )
        hits.append(F.merge_parts(F.peak_parts(maps, parts, visible), groups))
        seen.append(F.merge_parts(visible, groups))
    means = {name: float(torch.stack([row[name] for row in rows]).nanmean()) for name in NAMES}
    counts = F.identity_counts(torch.stack(hits), torch.stack(seen), torch.tensor(list(test.labels)), len(test.classes))
    return means | {"part_identity": float(F.part_identity(*counts))}


@pytest.mark.parametrize(
    ("region", "share", "said"),
    [
        ("mass", None, "regions of 0.2 × the mass of the map, τ 0.2"),
        ("object", 0.3, "regions of 0.3 × the area of the object, τ 0.2"),
    ],
)
def test_equal_to_a_slow_recomputation(trained: Path, region: str, share: float | None, said: str) -> None:
    protocol = EvaluationProtocol(region=region, region_share=share, resamples=20)
    result = evaluate(trained, protocol, metrics=(*NAMES, "part_identity"), quiet=True, files=False)
    for name, value in slowly(trained, region).items():
        # Batches round maps otherwise than single images do: a pixel at the edge of a region, of about two hundred.
        assert result[name] == pytest.approx(value, abs=0.01), name
    assert said in table(result)
    assert result.protocol["region"] == region
    assert 0 <= result["part_identity_null"] <= 1
    assert math.isnan(result.numbers["part_identity_null"].low)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(DaplError, match="region: 'objects' is not known; did you mean 'object'"):
        EvaluationProtocol(region="objects")
    with pytest.raises(DaplError, match="region_share must lie strictly between 0 and 1"):
        EvaluationProtocol(region="mass", region_share=1.5)
    with pytest.raises(DaplError, match="use object or mass"):
        EvaluationProtocol(region_share=0.1)
