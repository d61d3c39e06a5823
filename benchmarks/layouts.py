"""What the channels-last layout of memory, which dapl uses, and `torch.compile`, which it does not, are worth.

    python -m benchmarks layouts

The network of a backbone at 224 px, and the paper's head (200 classes × 10 heads, D1 = 16) on cached features; one
thread, random images and weights, which cost what real ones cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.timing import Ratio, ratio, seconds
from dapl.batches.sources import Batch
from dapl.common.seeds import generator
from dapl.config import BackboneConfig, DaplModel, ForegroundConfig, LossConfig, WarmUpStage
from dapl.models.build import build_model
from dapl.training.stages import Objective, make_optimizer

SIDE, CLASSES = 224, 10
HEAD_CLASSES, HEAD_BATCH = 200, 80
BATCHES = {"efficientnet_lite0": 32, "densenet161": 4}
AS_IT_IS = "channels-last, as dapl does"


def ratios(turns: int = 5) -> Iterator[Ratio]:
    for name, batch in BATCHES.items():
        config = DaplModel(backbone=BackboneConfig(name=name, weights="random"))
        network = build_model(config, CLASSES).backbone.network
        plain = torch.rand(batch, 3, SIDE, SIDE, generator=generator("images"))
        images = plain.contiguous(memory_format=torch.channels_last)
        what, network = f"{name}, {batch} images", network.eval()
        passing = _passing(network, images)
        yield ratio(f"pass of {what}, plain layout", AS_IT_IS, "> 1", _passing(network, plain), passing, turns)
        if name == "efficientnet_lite0":
            compiled = _passing(torch.compile(network), images)
            started, once = seconds(compiled), seconds(passing)
            yield Ratio(f"the first pass of {what}, torch.compile", AS_IT_IS, started / once, (started / once,) * 2, "")
            yield ratio(f"pass of {what}, torch.compile", AS_IT_IS, "", compiled, passing, turns)
            steps = [_stepping(network.train(), each) for each in (plain, images)]
            yield ratio(f"step of {what}, plain layout", AS_IT_IS, "> 1", *steps, turns)
    yield from _compiled_head(turns)


def _compiled_head(turns: int) -> Iterator[Ratio]:
    """A step of the warm-up with the foreground loss, on cached features."""
    model = build_model(DaplModel(backbone=BackboneConfig(weights="random")), HEAD_CLASSES).train()
    objective = Objective(model, LossConfig(foreground=ForegroundConfig(weight=10.0)))
    drawn = generator("features")
    batch = Batch(
        torch.arange(HEAD_BATCH),
        torch.randint(HEAD_CLASSES, (HEAD_BATCH,), generator=drawn),
        features=torch.rand(HEAD_BATCH, model.backbone.channels, 7, 7, generator=drawn),
        masks=torch.rand(HEAD_BATCH, 7, 7, generator=drawn),
    )
    optimizer, negatives = make_optimizer(model, WarmUpStage()), objective.draw_negatives(drawn)

    def stepping(terms: Callable[[Batch, Tensor | None], dict[str, Tensor]]) -> Callable[[], None]:
        def call() -> None:
            optimizer.zero_grad()
            terms(batch, negatives)["total"].backward()
            optimizer.step()

        return call

    compiled, plain = stepping(torch.compile(objective)), stepping(objective)
    plain()
    started, once = seconds(compiled), seconds(plain)
    what, against = f"step on cached features, {HEAD_BATCH} images, torch.compile", "as dapl does"
    yield Ratio(f"the first {what}", against, started / once, (started / once,) * 2, "")
    yield ratio(what, against, "", compiled, plain, turns)


def _passing(network: Callable[[Tensor], object], images: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def call() -> None:
        network(images)

    return call


def _stepping(network: nn.Module, images: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-6)

    def call() -> None:
        optimizer.zero_grad()
        sum(one.mean() for one in network(images)).backward()
        optimizer.step()

    return call
