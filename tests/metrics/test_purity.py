"""Purity against loops written from PIP-Net (Nauta et al. 2023)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapl.metrics import functional as C

CUB = ["back", "beak", "belly", "breast", "crown", "forehead", "left_eye", "left_leg", "left_wing", "nape"]
CUB += ["right_eye", "right_leg", "right_wing", "tail", "throat"]


class TestMergedParts:
    @pytest.mark.parametrize("between", ["_", " ", "-"])
    def test_cub_has_twelve(self, between: str) -> None:
        names, groups = C.merge_left_right([name.replace("_", between) for name in CUB])
        assert len(names) == 12
        for part in ("eye", "leg", "wing"):
            left, right = (CUB.index(f"{side}_{part}") for side in ("left", "right"))
            assert groups[left] == groups[right] == names.index(part)
        assert groups.unique().tolist() == list(range(12))

    def test_a_side_alone_and_names_that_only_look_like_sides(self) -> None:
        names, groups = C.merge_left_right(["left fin", "bright spot", "right", "Wing_Right", "wing-left"])
        assert names == ["fin", "bright spot", "right", "Wing"]
        assert groups.tolist() == [0, 1, 2, 3, 3]

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(st.lists(st.integers(0, 3), min_size=4, max_size=7), st.integers(0, 2**31))
    def test_any_grouping(self, groups: list[int], seed: int) -> None:
        flags = torch.rand(2, 3, len(groups), generator=torch.Generator().manual_seed(seed)) < 0.3
        got = C.merge_parts(flags, torch.tensor(groups))
        assert got.shape == (2, 3, max(groups) + 1)
        for group in range(max(groups) + 1):
            members = [k for k, member in enumerate(groups) if member == group]
            assert torch.equal(got[..., group], flags[..., members].any(-1))


class TestPatches:
    def test_cells_of_seven_by_seven_are_the_patches_of_pip_net(self) -> None:
        """There the published stride, round((224 − 32) / 6) = 32, is whole."""
        boxes = C.patches(torch.arange(49), (7, 7), 224)
        for cell in range(49):
            row, column = divmod(cell, 7)
            assert boxes[cell].tolist() == [32 * column, 32 * row, 32 * column + 32, 32 * row + 32]

    @pytest.mark.parametrize("grid", [(14, 14), (26, 26), (5, 9)])
    def test_a_patch_is_whole_and_around_its_cell(self, grid: tuple[int, int]) -> None:
        size = (200, 224)
        boxes = C.patches(torch.arange(grid[0] * grid[1]), grid, size)
        for cell, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            row, column = divmod(cell, grid[1])
            assert x2 - x1 == pytest.approx(32, abs=1e-3)
            assert y2 - y1 == pytest.approx(32, abs=1e-3)
            assert x1 >= 0 <= y1
            assert x2 <= size[1]
            assert y2 <= size[0]
            assert x1 <= (column + 0.5) * size[1] / grid[1] <= x2
            assert y1 <= (row + 0.5) * size[0] / grid[0] <= y2

    def test_a_image_smaller_than_the_patch(self) -> None:
        assert C.patches(torch.tensor(3), (2, 2), (20, 40)).tolist() == [8, 0, 40, 20]

    def test_bounds_are_inclusive_and_invisible_parts_are_nowhere(self) -> None:
        boxes = torch.tensor([[32.0, 64.0, 64.0, 96.0]])
        keypoints = torch.tensor([[32.0, 64.0], [64.0, 96.0], [64.1, 80.0], [50.0, 63.9], [math.nan, math.nan]])
        visible = torch.tensor([True, True, True, True, False])
        assert C.parts_in_patches(boxes, keypoints, visible).tolist() == [[True, True, False, False, False]]
        assert not C.parts_in_patches(boxes, keypoints, visible & False).any()

    def test_keypoints_of_a_crop_are_those_of_the_image_the_model_saw(self) -> None:
        """A beak at (150, 100), a crop at (100, 80) of 100×100 scaled to 224: it is at (112, 44.8), in cell (1, 3).

        Scaled alone, as PIP-Net's code does for box crops, it would be looked for outside the image.
        """
        seen = (torch.tensor([[150.0, 100.0]]) - torch.tensor([100.0, 80.0])) * 2.24
        box = C.patches(torch.tensor([1 * 7 + 3]), (7, 7), 224)
        assert C.parts_in_patches(box, seen, torch.tensor([True])).all()
        assert not C.parts_in_patches(box, torch.tensor([[150.0, 100.0]]) * 2.24, torch.tensor([True])).any()


def test_ties_of_scores_go_to_the_lower_number() -> None:
    scores = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 2.0], [1.0, 2.0]])
    assert C.top_images(scores, 3).tolist() == [[2, 0, 1], [0, 1, 2]]
    assert C.top_images(scores, 3, torch.tensor([9, 8, 7, 1])).tolist() == [[2, 3, 1], [3, 2, 1]]
    assert C.top_images(scores, 10).shape == (2, 4)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6))
def test_purity_equals_the_loops(seed: int, top: int) -> None:
    """From keypoints and grid locations to purities, with few distinct scores, so that ties are common."""
    g = torch.Generator().manual_seed(seed)
    images, prototypes, parts, side, grid = 9, 4, 5, 64, 4
    groups = torch.tensor([0, 1, 2, 1, 3])
    scores = torch.randint(0, 4, (images, prototypes), generator=g).float()
    locations = torch.randint(0, grid * grid, (images, prototypes), generator=g)
    keypoints = torch.rand(images, parts, 2, generator=g) * side
    visible = torch.rand(images, parts, generator=g) < (0.6 if seed % 3 else 0.05)

    inside = C.parts_in_patches(C.patches(locations, (grid, grid), side, 32), keypoints, visible)
    present, seen = C.merge_parts(inside, groups), C.merge_parts(visible, groups)
    chosen = C.top_images(scores, top)
    got = C.purity(present[chosen, torch.arange(prototypes)[:, None]], seen[chosen])

    for j in range(prototypes):
        best = sorted(range(images), key=lambda i: (-scores[i, j].item(), i))[:top]
        presences: dict[int, list[bool]] = {}
        for i in best:
            row, column = divmod(int(locations[i, j]), grid)
            left = min(max(column * 16 + 8 - 16, 0), side - 32)
            upper = min(max(row * 16 + 8 - 16, 0), side - 32)
            for group in range(4):
                members = [k for k in range(parts) if groups[k] == group and visible[i, k]]
                if members:
                    hit = any(
                        left <= keypoints[i, k, 0] <= left + 32 and upper <= keypoints[i, k, 1] <= upper + 32
                        for k in members
                    )
                    presences.setdefault(group, []).append(hit)
        wanted = max((sum(p) / len(p) for p in presences.values()), default=math.nan)
        assert got[j].item() == pytest.approx(wanted, nan_ok=True)


def test_known_ends() -> None:
    seen = torch.ones(1, 10, 3).bool()
    always = torch.zeros(1, 10, 3).bool()
    always[..., 1] = True
    assert C.purity(always, seen) == 1
    assert C.purity(always & False, seen) == 0
    assert C.purity(torch.eye(3).bool().repeat(1, 1, 1), torch.ones(1, 3, 3).bool()).item() == pytest.approx(1 / 3)
    assert C.purity(always & False, seen & False).isnan()
    rarely = seen.clone()
    rarely[:, 1:, 1] = False  # visible once and hit once: pure, as PIP-Net counts
    assert C.purity(always & rarely, rarely) == 1
