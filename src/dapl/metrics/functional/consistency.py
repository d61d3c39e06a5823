"""Consistency and stability (Huang et al. 2023): does a prototype show the same part in all images of its class, and
still the same parts when an image is slightly noisy?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    Generators,
    check_flags,
    check_images,
    check_integers,
    check_keypoints,
    check_maps,
    check_positive,
    check_same,
    check_same_shape,
    check_share,
    drawn,
    shape_of,
    which,
)
from dapl.metrics.functional.regions import column_and_row, first_of_highest, flat_maps, on_pixels, pair

PUBLISHED_STD = (0.229, 0.224, 0.225)
"""The deviations of ImageNet's channels, by which the papers' images were normalised. Noise and attacks that are
published for normalised images are meant in these units, whatever the backbone at hand normalises by."""


def visible_keypoints(keypoints: Tensor, visible: Tensor, size: int | tuple[int, int]) -> Tensor:
    """The parts that count in an image: those visible whose keypoint lies in the image (after a crop, say).

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
    limit = keypoints.new_tensor(pair(size)[::-1])
    return visible & ((keypoints >= 0) & (keypoints <= limit)).all(-1)


def pixel_of(keypoints: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Column and row of each keypoint, (…, K, 2); one on the right or lower border lies in the last pixel."""
    last = torch.tensor(pair(size)[::-1], device=keypoints.device) - 1
    return torch.minimum(keypoints.floor(), last.to(keypoints.dtype))


def peaks(maps: Tensor, size: int | tuple[int, int] | None = None) -> Tensor:
    r"""The pixel where a prototype's upsampled map is highest; of several that tie, the first in row-major order.

    What a tie is, `activation_regions` says: the last bits of a map decide nothing. A flat map ties everywhere; its
    "peak" is the first pixel, and metrics do not count it (`corresponding_parts`).

    .. math:: \operatorname{argmax}_{(x, y)} a_j[y, x]

    Both coordinates are of one and the same pixel (ProtoPNeXt takes the row for both when there is a tie).

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already.

    Returns:
        integers (…, P, 2), x (column) and y (row).

    Example:
        >>> import torch
        >>> peaks(torch.tensor([[[0.0, 1.0, 3.0], [3.0, 2.0, 0.0]]]))
        tensor([[2, 0]])
    """
    check_maps(maps)
    found = [first_of_highest(chunk.flatten(1), slack) for _, chunk, slack in on_pixels(maps, size)]
    width = maps.shape[-1] if size is None else pair(size)[1]
    return column_and_row(torch.cat(found), width).view(*maps.shape[:-2], 2)


def corresponding_parts(
    maps: Tensor,
    keypoints: Tensor,
    visible: Tensor,
    size: int | tuple[int, int],
    half_size: int = 36,
    at: Tensor | None = None,
) -> Tensor:
    r"""The parts that a prototype corresponds to in an image: those in a box around its highest pixel.

    .. math:: o_{jk} = [\, k \text{ visible},\ |x_k - x_j| \le \text{half_size},\ |y_k - y_j| \le \text{half_size} \,]

    with the pixels :math:`(x_k, y_k)` of the keypoint and :math:`(x_j, y_j)` of `peaks`, bounds included: the box of
    "72 px" of the paper holds 73 pixels per side. A part whose keypoint lies outside the image is not visible, and a
    flat map corresponds to no part.

    No model pass beyond the one that gave the maps.

    Args:
        maps: (…, P, h, w) of the prototypes of each image's class.
        keypoints: (…, K, 2), x and y in pixels of the image as the model saw it.
        visible: bool (…, K).
        size: height and width of that image; the maps are upsampled to it bicubically.
        half_size: 36 as published, for images of 224 px.
        at: `peaks` of the maps at that size, where they are known already.

    Returns:
        bool (…, P, K).

    Example:
        >>> import torch
        >>> maps = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])  # highest at the upper right
        >>> keypoints = torch.tensor([[200.0, 20.0], [20.0, 200.0]])
        >>> corresponding_parts(maps, keypoints, torch.ones(2).bool(), 224)
        tensor([[ True, False]])
    """
    if half_size < 0:
        raise DaplError(f"half_size must be at least 0 pixels, but is {half_size:g}.")
    visible = visible_keypoints(keypoints, visible, size)
    check_maps(maps)
    check_same(maps, keypoints, "maps and keypoints", leading=3, trailing=2)
    at = peaks(maps, size) if at is None else at
    offsets = pixel_of(keypoints, size).unsqueeze(-3) - at.unsqueeze(-2)
    return (offsets.abs() <= half_size).all(-1) & visible.unsqueeze(-2) & ~flat_maps(maps).unsqueeze(-1)


def count_parts(
    corresponding: Tensor, visible: Tensor, prototypes: Tensor, number: int, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How often each prototype corresponded to a part, and how often it could have: over the images of its class.

    Args:
        corresponding: bool (B, M, K), from `corresponding_parts`, for the M prototypes of each image's class.
        visible: bool (B, K), from `visible_keypoints`.
        prototypes: integers (B, M), which prototypes these are.
        number: P, of all prototypes.
        kept: bool (B, M), those that count; None means all.

    Returns:
        hits and seen, integers (P, K).

    Example:
        >>> import torch
        >>> corresponding = torch.tensor([[[True, False]], [[True, True]]])
        >>> visible = torch.tensor([[True, False], [True, True]])
        >>> count_parts(corresponding, visible, torch.tensor([[1], [1]]), number=2)
        (tensor([[0, 0],
                [2, 1]]), tensor([[0, 0],
                [2, 1]]))
    """
    check_flags(corresponding, "corresponding", "images, prototypes, parts")
    if corresponding.ndim != 3:
        raise DaplError(f"corresponding must be (images, prototypes, parts), but is {shape_of(corresponding)}.")
    images, named, parts = corresponding.shape
    check_integers(prototypes, torch.Size((images, named)), number, "prototypes", "prototypes")
    visible = which(visible, corresponding, torch.Size((images, parts)), "visible", "parts")
    kept = which(kept, corresponding, torch.Size((images, named)), "kept", "prototypes")
    seen = visible.unsqueeze(1) & kept.unsqueeze(2)
    empty = torch.zeros(number, parts, dtype=torch.long, device=corresponding.device)
    rows = prototypes.to(corresponding.device).flatten()
    hits, seen = (empty.index_add(0, rows, flags.flatten(0, 1).long()) for flags in (corresponding & seen, seen))
    return hits, seen


def consistent_prototypes(hits: Tensor, seen: Tensor, threshold: float = 0.8) -> Tensor:
    r"""Which prototypes are consistent: some part is hit in at least 0.8 of the images in which it is visible.

    .. math:: \exists k : \text{hits}_{jk} / \text{seen}_{jk} \ge \text{threshold}

    Args:
        hits: integers (…, P, K), from `count_parts`.
        seen: the same shape.
        threshold: 0.8 as published.

    Returns:
        (…, P), 1 or 0; NaN where no part was ever visible (or the prototype pruned), so that nothing can be said.

    Example:
        >>> import torch
        >>> consistent_prototypes(torch.tensor([[4, 1], [3, 0], [0, 0]]), torch.tensor([[5, 5], [4, 9], [0, 0]]))
        tensor([1., 0., nan])
    """
    check_share(threshold, "threshold")
    if hits.shape != seen.shape or hits.ndim < 2 or bool(((hits < 0) | (hits > seen)).any()):
        raise DaplError(
            f"hits must be counts (…, prototypes, parts) that are at most seen, "
            f"but are {shape_of(hits)} beside {shape_of(seen)}: both come from `count_parts`."
        )
    rate = hits.double() / seen.clamp(min=1)  # exact quotients round as the threshold does: 4/5 is at least 0.8
    return (rate >= threshold).any(-1).float().where(seen.any(-1), torch.nan)


def consistency(hits: Tensor, seen: Tensor, threshold: float = 0.8) -> Tensor:
    r"""Consistency: the share of prototypes that show the same part in (nearly) all images of their class.

    .. math:: \frac{1}{|\mathcal{P}|} \sum_j [\, \max_k \text{hits}_{jk} / \text{seen}_{jk} \ge \text{threshold} \,]

    over the prototypes that could be measured, see `consistent_prototypes`. The paper prints it in percent. Costs
    no model pass of its own.

    Reference: Q. Huang et al., "Evaluation and Improvement of Interpretability for Self-Explainable Part-Prototype
    Networks", ICCV 2023.

    Arguments as of `consistent_prototypes`; counts over the test images. Returns (…), in [0, 1]; NaN when nothing could
    be measured.

    Example:
        >>> import torch
        >>> consistency(torch.tensor([[4, 1], [3, 0], [0, 0]]), torch.tensor([[5, 5], [4, 9], [0, 0]]))
        tensor(0.5000)
    """
    return consistent_prototypes(hits, seen, threshold).nanmean(-1)


def perturb(
    images: Tensor,
    std: Tensor | Sequence[float],
    generator: Generators,
    noise_std: float = 0.2,
    clip: float = 0.25,
) -> Tensor:
    r"""Images with noise that is, in images normalised by σ, the published one.

    .. math:: x + \sigma_c \cdot \xi, \qquad \xi = \text{clip}(n, \pm 0.25), \quad n \sim \mathcal{N}(0, 0.2^2)

    Images are in [0, 1]; :math:`(x - \mu_c) / \sigma_c` makes noise of :math:`\xi` out of :math:`\sigma_c \xi`, and
    :math:`\mu` cancels. The result may leave [0, 1] and is not clamped: a clamp would change the distribution.

    Args:
        images: (…, channels, H, W), uint8, or floating point in [0, 1].
        std: σ, one number per channel: `PUBLISHED_STD`, so that all models meet the same noise. A backbone that
            normalises by other numbers would meet another: with 0.5 for each channel, noise twice as strong.
        generator: one for all images, or one per image (the first axis) as `dapl.common.seeds.generator` makes
            them, so that the noise of an image depends on neither batch nor process.
        noise_std: 0.2 as published.
        clip: 0.25 as published.

    Returns:
        floating point, the shape of images.

    Example:
        >>> import torch
        >>> images = torch.rand(2, 3, 8, 8)
        >>> noisy = perturb(images, [0.5, 0.5, 0.5], torch.Generator().manual_seed(0))
        >>> bool(((noisy - images).abs() <= 0.5 * 0.25 + 1e-6).all())
        True
    """
    check_positive(noise_std, "noise_std")
    check_positive(clip, "clip")
    images = check_images(images)
    deviation = torch.as_tensor(std, dtype=torch.float32, device=images.device).reshape(-1, 1, 1)
    if len(deviation) != images.shape[-3]:
        raise DaplError(f"std must be one number per channel, but is {len(deviation)} for {images.shape[-3]} channels.")
    noise = drawn(images.shape, generator, lambda shape, g: torch.randn(shape, generator=g, device=g.device))
    return images + (noise * noise_std).clamp_(-clip, clip).to(images.device) * deviation


def count_stable(
    corresponding: Tensor,
    perturbed: Tensor,
    prototypes: Tensor,
    number: int,
    visible: Tensor | None = None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """In how many images of its class each prototype kept its parts under noise, and in how many it was asked.

    An image in which no part is visible asks nothing and is not counted.

    Arguments as of `count_parts`, with ``perturbed``, the correspondence in the perturbed images. Returns stable and
    shown, integers (P).

    Example:
        >>> import torch
        >>> before = torch.tensor([[[True, False]], [[True, True]]])
        >>> after = torch.tensor([[[True, False]], [[True, False]]])
        >>> count_stable(before, after, torch.tensor([[0], [0]]), number=1)
        (tensor([1]), tensor([2]))
    """
    unchanged = unchanged_parts(corresponding, perturbed, visible).unsqueeze(-1)
    shown = torch.ones_like(unchanged[:, 0]) if visible is None else visible.any(-1, keepdim=True)
    stable, shown = count_parts(unchanged, shown, prototypes, number, kept)  # as of one part: being unchanged
    return stable.squeeze(1), shown.squeeze(1)


def unchanged_parts(corresponding: Tensor, perturbed: Tensor, visible: Tensor | None = None) -> Tensor:
    """bool (…, P): whether a prototype kept all its parts under noise; never where no part is visible.

    Shapes: corresponding and perturbed bool (…, P, K), visible bool (…, K).

    Example:
        >>> before, after = torch.tensor([[[[1, 0], [0, 1]]], [[[1, 0], [1, 1]]]]).bool()    # one image
        >>> unchanged_parts(before, after)
        tensor([[ True, False]])
    """
    check_flags(corresponding, "corresponding", "images, prototypes, parts")
    check_flags(perturbed, "perturbed", "images, prototypes, parts")
    check_same_shape(corresponding, perturbed, "corresponding and perturbed")
    parts = torch.Size((*corresponding.shape[:-2], corresponding.shape[-1]))
    shown = which(visible, corresponding, parts, "visible", "parts").any(-1, keepdim=True)
    return (corresponding == perturbed).all(-1) & shown


def stability(stable: Tensor, shown: Tensor) -> Tensor:
    r"""Stability: how often a prototype's parts are unchanged under noise.

    .. math:: \frac{1}{|\mathcal{P}|} \sum_j \frac{\#\{x : o_j(x) = o_j(x + \xi)\}}{\#\{x\}}

    x are the test images of the prototype's class, o the vector of `corresponding_parts`, ξ the noise of `perturb`:
    the mean over prototypes of the share of images, as published. The paper prints it in percent. Costs one more
    model pass over the images, the perturbed ones.

    Reference: Q. Huang et al., "Evaluation and Improvement of Interpretability for Self-Explainable Part-Prototype
    Networks", ICCV 2023.

    Args:
        stable: integers (…, P), from `count_stable` over the test images.
        shown: the same shape. Prototypes that were never shown are left out.

    Returns:
        (…), in [0, 1]; NaN when none was shown.

    Example:
        >>> import torch
        >>> stability(torch.tensor([3, 1, 0]), torch.tensor([4, 1, 0]))
        tensor(0.8750)
    """
    if stable.shape != shown.shape or stable.ndim < 1 or bool(((stable < 0) | (stable > shown)).any()):
        raise DaplError(
            f"stable must be counts (…, prototypes) that are at most shown, "
            f"but are {shape_of(stable)} beside {shape_of(shown)}: both come from `count_stable`."
        )
    return stable_shares(stable, shown).nanmean(-1).float()


def stable_shares(stable: Tensor, shown: Tensor) -> Tensor:
    """The share of images in which a prototype kept its parts; NaN where it was never asked.

    Example:
        >>> stable_shares(torch.tensor([3, 0]), torch.tensor([4, 0])).tolist()
        [0.75, nan]
    """
    return stable.double() / shown
