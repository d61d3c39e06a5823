"""What bad input gets: one clear sentence each."""

from __future__ import annotations

import math

import pytest
import torch

from dapl import metrics as M
from dapl.common.errors import DaplError
from dapl.metrics import functional as C

from . import test_classes, test_functional, test_parts

maps, masks = torch.rand(2, 3, 7, 7), torch.rand(2, 7, 7)
keypoints, visible = torch.rand(2, 5, 2) * 7, torch.ones(2, 5).bool()
holed = keypoints.clone()
holed[1, 2, 0] = math.nan
corresponding, prototypes = torch.ones(2, 3, 5).bool(), torch.zeros(2, 3).long()
images, regions = torch.rand(2, 3, 8, 8), torch.ones(2, 8, 8).bool()
counts = torch.ones(3, 5).long()
scores = torch.rand(4, 3)
one = torch.Generator()
boxes = torch.rand(2, 3, 4)

BAD_INPUT = {
    "maps of integers": (lambda: C.peaks(maps.long()), "maps must be floating point"),
    "NaN in maps": (lambda: C.peaks(maps * math.nan), "NaN"),
    "size 0": (lambda: C.peaks(maps, 0), "size must be at least one pixel"),
    "half_size": (lambda: C.corresponding_parts(maps, keypoints, visible, 7, -1), "half_size must be at least 0"),
    "keypoints of three": (lambda: C.corresponding_parts(maps, torch.rand(2, 5, 3), visible, 7), "keypoints must be"),
    "no keypoints": (lambda: C.visible_keypoints(torch.rand(2, 0, 2), visible[:, :0], 7), "there are no parts"),
    "NaN keypoints": (lambda: C.corresponding_parts(maps, holed, visible, 7), "mark these parts invisible"),
    "visible of other parts": (lambda: C.visible_keypoints(keypoints, visible[:, 1:], 7), "visible has the shape 2×4"),
    "visible is not boolean": (lambda: C.visible_keypoints(keypoints, visible.float(), 7), "visible must be boolean"),
    "other images": (lambda: C.corresponding_parts(maps[:1], keypoints, visible, 7), "do not describe the same"),
    "corresponding is not boolean": (lambda: C.count_parts(corresponding.float(), visible, prototypes, 3), "boolean"),
    "corresponding of four axes": (
        lambda: C.count_parts(corresponding[None], visible, prototypes, 3),
        "must be .images, prototypes, parts., but is 1×2×3×5",
    ),
    "prototypes beyond": (lambda: C.count_parts(corresponding, visible, prototypes + 3, 3), "between 0 and 2"),
    "prototypes of floats": (lambda: C.count_parts(corresponding, visible, prototypes.float(), 3), "integers"),
    "prototypes of others": (lambda: C.count_parts(corresponding, visible, prototypes[:, :2], 3), "shape 2×3"),
    "kept of others": (
        lambda: C.count_parts(corresponding, visible, prototypes, 3, torch.ones(4).bool()),
        "kept has the shape 4",
    ),
    "more hits than seen": (lambda: C.consistency(counts + 1, counts), "at most seen"),
    "hits of other shape": (lambda: C.consistency(counts[:1], counts), "at most seen"),
    "threshold 0": (lambda: C.consistency(counts, counts, 0.0), "threshold must be above 0 and at most 1"),
    "threshold NaN": (lambda: C.consistency(counts, counts, math.nan), "threshold must be above 0"),
    "noise_std": (lambda: C.perturb(images, [1, 1, 1], one, noise_std=0), "noise_std must be above 0"),
    "clip": (lambda: C.perturb(images, [1, 1, 1], one, clip=math.nan), "clip must be above 0"),
    "std of other channels": (lambda: C.perturb(images, [1, 1], one), "one number per channel"),
    "images of integers": (lambda: C.perturb(images.long(), [1, 1, 1], one), "uint8 or floating point"),
    "generators for others": (lambda: C.perturb(images, [1, 1, 1], [one] * 3), "3 generators for 2 images"),
    "generators for none": (lambda: C.random_regions(regions[0], [one]), "1 generators for no batch of images"),
    "perturbed of others": (lambda: C.count_stable(corresponding, corresponding[:, :2], prototypes, 3), "same shape"),
    "stable above shown": (lambda: C.stability(counts[0] + 1, counts[0]), "at most shown"),
    "no names": (lambda: C.merge_left_right([]), "no part names"),
    "groups of others": (lambda: C.merge_parts(visible, torch.zeros(4).long()), "groups must be integers"),
    "groups beyond": (lambda: C.merge_parts(visible, torch.arange(5) + 1), "groups must lie between 0 and 4"),
    "locations beyond": (lambda: C.patches(torch.tensor([49]), (7, 7), 224), "locations must lie between 0 and 48"),
    "locations of floats": (lambda: C.patches(torch.tensor([1.0]), (7, 7), 224), "locations must be integers"),
    "patch_size": (lambda: C.patches(torch.tensor([1]), (7, 7), 224, 0), "patch_size must be above 0"),
    "boxes of three": (lambda: C.parts_in_patches(boxes[..., :3], keypoints, visible), "boxes must be"),
    "boxes of other images": (lambda: C.parts_in_patches(boxes[:1], keypoints, visible), "same images"),
    "top 0": (lambda: C.top_images(scores, 0), "top must be at least 1"),
    "scores with NaN": (lambda: C.top_images(scores * math.nan), "without NaN"),
    "scores of one axis": (lambda: C.top_images(scores[0]), "scores must be"),
    "images of others": (lambda: C.top_images(scores, 2, torch.arange(3)), "one number per image"),
    "present of others": (lambda: C.purity(corresponding, corresponding[:, :2]), "same shape"),
    "present is not boolean": (lambda: C.purity(corresponding.float(), corresponding), "present must be boolean"),
    "purity of nothing": (lambda: M.Purity(3, 0), "at least 1 of parts"),
    "purity of infinite scores": (
        lambda: M.Purity(3, 5).update(scores[:2] / 0, corresponding, visible, torch.arange(2)),
        "scores hold NaN or infinite",
    ),
    "vectors with NaN": (lambda: C.sparsity(scores * math.nan, 2), "vectors hold NaN"),
    "vectors of three axes": (lambda: C.sparsity(maps[0], 2), "vectors must be"),
    "no classes": (lambda: C.sparsity(scores, 0), "classes must be at least 1"),
    "groups of other prototypes": (lambda: C.unique_prototypes(scores, groups=torch.arange(3)), "groups must be"),
    "weights of one axis": (lambda: C.class_sizes(scores[0]), "class_weights must be"),
    "negative threshold": (lambda: C.class_sizes(scores, -1), "threshold must be at least 0"),
    "share 1": (lambda: C.explanation_size(scores, 1.0), "share must be at least 0 and below 1"),
    "contributions of integers": (lambda: C.explanation_size(scores.long()), "contributions must be floating point"),
    "regions are maps": (lambda: C.object_overlap(maps, masks), "regions must be boolean"),
    "masks on another grid": (lambda: C.object_overlap(maps > 0.5, masks[:, 1:]), "same grid"),
    "masks of 255": (lambda: C.outside_inside_relevance_ratio(maps, masks * 255), "between 0 .* and 1"),
    "negative maps": (lambda: C.outside_inside_relevance_ratio(maps - 1, masks), "negative"),
    "regions of other prototypes": (
        lambda: C.outside_inside_relevance_ratio(maps, masks, regions=maps[:, :2] > 0.5),
        "maps and regions must have the same shape",
    ),
    "sigma": (lambda: C.blur_out(images, regions, 0), "sigma must be above 0"),
    "regions to blur are floats": (lambda: C.blur_out(images, regions.float()), "regions must be boolean"),
    "regions on another grid": (lambda: C.blur_out(images, regions[:, 1:]), "same grid"),
    "regions of other images": (lambda: C.blur_out(images, regions[:1]), "one or M per image"),
    "regions of five axes": (lambda: C.blur_out(images, regions[:, None, None]), "one or M per image"),
    "images without channels": (lambda: C.blur_out(images[0, 0], regions[0]), "images must be"),
    "a single pixel": (lambda: C.random_regions(torch.ones(1, 1).bool(), one), "cannot be moved"),
    "scores of integers": (lambda: C.faithfulness(scores, scores, scores.long()), "random must be scores"),
    "scores not finite": (lambda: C.faithfulness(scores, scores / 0, scores), "blurred must be scores"),
    "scores of others": (lambda: C.faithfulness(scores, scores[:2], scores), "before and blurred must have the same"),
    "measured of others": (
        lambda: C.faithfulness(scores, scores, scores, torch.ones(2).bool()),
        "measured has the shape 2",
    ),
}


EVERY = {
    f"{name}: {case}": table[case]
    for name, table in (
        ("parts", test_parts.BAD_INPUT),
        ("functions", test_functional.BAD_INPUT),
        ("classes", test_classes.BAD_INPUT),
        ("companions", BAD_INPUT),
    )
    for case in table
}


@pytest.mark.parametrize("case", EVERY)
def test_bad_input_gets_one_clear_sentence(case: str) -> None:
    call, message = EVERY[case]
    with pytest.raises(DaplError, match=message) as error:
        call()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
