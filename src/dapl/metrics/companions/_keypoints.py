"""Which keypoints can be hit at all."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.metrics.companions._checks import check_keypoints
from dapl.metrics.functional._regions import _pair


def visible_keypoints(keypoints: Tensor, visible: Tensor, size: int | tuple[int, int]) -> Tensor:
    """The parts that count in an image: those visible whose keypoint lies in the picture (after a crop, say).

    Args:
        keypoints: (…, K, 2), x and y in pixels of the image as the model saw it.
        visible: bool (…, K) from the annotation.
        size: height and width of that image.

    Returns:
        bool (…, K).

    Example:
        >>> import torch
        >>> keypoints = torch.tensor([[3.5, 0.0], [9.0, 1.0], [1.0, 1.0]])
        >>> visible_keypoints(keypoints, torch.tensor([True, True, False]), (4, 8))
        tensor([ True, False, False])
    """
    visible = check_keypoints(keypoints, visible)
    limit = keypoints.new_tensor(_pair(size)[::-1])
    return visible & ((keypoints >= 0) & (keypoints <= limit)).all(-1)


def pixel_of(keypoints: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Column and row of each keypoint, (…, K, 2); one on the right or lower border lies in the last pixel."""
    last = torch.tensor(_pair(size)[::-1], device=keypoints.device) - 1
    return torch.minimum(keypoints.floor(), last.to(keypoints.dtype))
