"""Stability: does a prototype still show the same parts when the image is slightly noisy? (Huang et al. 2023)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics.companions._checks import Generators, check_flags, check_positive, check_same_shape, drawn
from dapl.metrics.companions._consistency import count_parts
from dapl.metrics.functional._checks import shape_of, which


def perturb(
    images: Tensor,
    std: Tensor | Sequence[float],
    generator: Generators,
    noise_std: float = 0.2,
    clip: float = 0.25,
) -> Tensor:
    r"""Images with noise that is, *after the model has normalised them*, the published one.

    .. math:: x + \sigma_c \cdot \xi, \qquad \xi = \text{clip}(n, \pm 0.25), \quad n \sim \mathcal{N}(0, 0.2^2)

    Our models take images in [0, 1] and compute :math:`(x - \mu_c) / \sigma_c` themselves, so noise of :math:`\sigma_c
    \xi` becomes noise of :math:`\xi` there; :math:`\mu` cancels. The result may leave [0, 1] and is not clamped: a
    clamp would change the distribution.

    Args:
        images: (…, channels, H, W), uint8, or floating point in [0, 1].
        std: σ, one number a channel: ``model.backbone.std``.
        generator: one for all images; or one an image (the first axis), as `dapl.seeds.generator(seed, name)` makes
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
    if images.ndim < 3 or not (images.is_floating_point() or images.dtype == torch.uint8):
        raise DaplError(
            f"images must be (…, channels, height, width), uint8 or floating point, "
            f"but are {images.dtype} {shape_of(images)}."
        )
    deviation = torch.as_tensor(std, dtype=torch.float32, device=images.device).reshape(-1, 1, 1)
    if len(deviation) != images.shape[-3]:
        raise DaplError(f"std must be one number a channel, but is {len(deviation)} for {images.shape[-3]} channels.")
    images = images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images
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

    Args:
        corresponding: bool (B, M, K), from `corresponding_parts` on the images.
        perturbed: the same from the maps of the perturbed images.
        prototypes: integers (B, M), which prototypes these are.
        number: P, of all prototypes.
        visible: bool (B, K), from `visible_keypoints`; None means all.
        kept: bool (B, M), those that count; None means all.

    Returns:
        stable and shown, integers (P).

    Example:
        >>> import torch
        >>> before = torch.tensor([[[True, False]], [[True, True]]])
        >>> after = torch.tensor([[[True, False]], [[True, False]]])
        >>> count_stable(before, after, torch.tensor([[0], [0]]), number=1)
        (tensor([1]), tensor([2]))
    """
    check_flags(corresponding, "corresponding", "images, prototypes, parts")
    check_flags(perturbed, "perturbed", "images, prototypes, parts")
    check_same_shape(corresponding, perturbed, "corresponding and perturbed")
    parts = torch.Size((*corresponding.shape[:-2], corresponding.shape[-1]))
    has_parts = which(visible, corresponding, parts, "visible", "parts").any(-1, keepdim=True)
    unchanged = (corresponding == perturbed).all(-1, keepdim=True)
    stable, shown = count_parts(unchanged, has_parts, prototypes, number, kept)  # as of one part: being unchanged
    return stable.squeeze(1), shown.squeeze(1)


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
    return (stable.double() / shown).nanmean(-1).float()
