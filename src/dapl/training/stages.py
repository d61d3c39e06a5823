"""Gradient descent: the total loss and an epoch of a fit stage, and the last layer.

The total loss is a module, so that it can be wrapped for several devices and for precision. Pure of files: `trainer`
says when, `state` saves. The other stages have files of their own: `projection`, `pruning` with merging, and `parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dapl.batches.sources import Batch, BatchSource, features_of, grid_masks, run_model, shares, shuffled
from dapl.common.errors import DaplError
from dapl.common.progress import Advance
from dapl.common.seeds import derive_seed, generator
from dapl.config import FitStage, GradientStage, LastLayerStage, LossConfig
from dapl.models.contract import Output, PrototypeModel
from dapl.processes.interface import Processes, own_batches, sum_rows
from dapl.training import losses
from dapl.training.adam import Adam

Terms = dict[str, float]
Response = Literal["scores", "distances"]
"""What a model answers for each prototype and image."""
Scores = Callable[[Sequence[Tensor]], Iterable[Tensor]]
"""Scores of images in batches: from B indices each to tensors B×P."""


class Objective(nn.Module):
    """Batch in, named terms out; ``total`` is what is minimised."""

    def __init__(self, model: PrototypeModel, weights: LossConfig) -> None:
        super().__init__()
        self.model = model
        self.weights = weights

    def draw_negatives(self, generator: torch.Generator) -> Tensor | None:
        """Prototypes of other heads for each head, or None where the contrastive term is off or none is left."""
        prototypes, contrast = self.model.prototypes, self.weights.contrast
        if not contrast.weight or prototypes.groups < 2:
            return None
        drawn = draw_negatives(prototypes.kept.cpu(), prototypes.groups, contrast.negatives, generator)
        return drawn.to(prototypes.vectors.device) if drawn.numel() else None

    def forward(self, batch: Batch, negatives: Tensor | None) -> dict[str, Tensor]:
        """``negatives``: long N×M from `draw_negatives`, or None where the contrastive term is off."""
        output = self.model.from_features(features_of(self.model, batch))
        terms = {"cross_entropy": losses.cross_entropy(output.logits, batch.labels)}
        total = terms["cross_entropy"]
        if len(self.model.prototypes):
            for name, weight, term in (*self._distances(batch, output), *self._optional(batch, output, negatives)):
                terms[name] = term
                total = total + weight * term
        terms["accuracy"] = (output.logits.argmax(1) == batch.labels).float().mean()
        return {"total": total, **terms}

    def _distances(self, batch: Batch, output: Output) -> Iterator[tuple[str, float, Tensor]]:
        prototypes = self.model.prototypes
        distances = output.distances.masked_fill(~prototypes.kept, torch.inf)
        cluster = losses.cluster_all if self.weights.cluster_of == "all" else losses.cluster
        # Each image as a class of its own: a column of its own prototypes, without those of all the other classes.
        membership, labels = prototypes.of_images(batch.labels).T, torch.arange(len(distances), device=distances.device)
        yield "cluster", self.weights.cluster, cluster(distances, membership, labels)
        yield "separation", -self.weights.separation, losses.separation(distances, membership, labels)

    def _optional(self, batch: Batch, output: Output, negatives: Tensor | None) -> Iterator[tuple[str, float, Tensor]]:
        """(name, weight, value) of the terms whose weight is not 0."""
        contrast, foreground, spatial = self.weights.contrast, self.weights.foreground, self.weights.spatial
        if negatives is not None:
            positives, counts = self._positives(output, batch.labels)
            scores = self.model.prototypes.across_groups(output.embedding.values, negatives)
            yield "contrast", contrast.weight, losses.contrastive(positives, scores, contrast.margin, counts)
        if foreground.weight and batch.masks is not None:
            named, counts = self._looked_at(batch.labels, foreground.over)
            masks = grid_masks(batch.masks, output.embedding.grid)
            if named is None and output.embedding.where is None:  # all maps of a batch: none of them is kept
                bias = self.model.prototypes.share_beside(output.embedding.values, masks)
            else:
                bias = losses.background_bias(self.model.maps(output.embedding, named), masks)
            yield "foreground", foreground.weight, losses.foreground_of(bias, foreground.threshold, counts)
        if spatial.weight:
            named, counts = self._looked_at(batch.labels, "class")
            maps = self.model.maps(output.embedding, named)
            yield "spatial", spatial.weight, losses.spatial_overlap(maps, spatial.sharpness, counts)

    def _looked_at(self, labels: Tensor, over: str) -> tuple[Tensor | None, Tensor]:
        """Prototypes (None: all) and which of them count, B×M."""
        if over == "all":
            return None, self.model.prototypes.kept.expand(len(labels), -1)
        return self.model.prototypes_of(labels)

    def _positives(self, output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the prototypes assigned to each head: B×N×1 for the image's class, B×N×C for all of P_h.

        And which of them count, in the same shape.
        """
        if self.weights.contrast.positives == "class":
            named, counts = self.model.prototypes_of(labels)
            return output.scores.gather(1, named).unsqueeze(2), counts.unsqueeze(2)
        prototypes = self.model.prototypes
        scores, kept = (t.unflatten(-1, (-1, prototypes.groups)).mT for t in (output.scores, prototypes.kept))
        return scores, kept.expand_as(scores)


def draw_negatives(kept: Tensor, groups: int, number: int, generator: torch.Generator) -> Tensor:
    """For each group, different prototypes of other groups that are kept: long G×min(number, how many each group has).

    >>> kept = torch.tensor([True, True, False, True])  # prototype 2 of group 0 was removed
    >>> draw_negatives(kept, 2, 64, torch.Generator().manual_seed(0)).tolist()
    [[1], [0]]
    """
    own = torch.arange(len(kept)) % groups == torch.arange(groups).unsqueeze(1)
    possible = kept & ~own
    chance = torch.rand(groups, len(kept), generator=generator).masked_fill(~possible, -1)
    return chance.topk(min(number, int(possible.sum(1).min())), dim=1).indices


def make_optimizer(model: PrototypeModel, stage: GradientStage) -> torch.optim.Adam:
    """Components with a learning rate learn, all others are frozen."""
    groups = []
    parts = model.components()
    if not any(stage.learning_rates.get(name) for name in parts):
        raise DaplError(f"schedule: {stage.stage} gives none of {', '.join(parts)} a learning rate.")
    for name, part in parts.items():
        rate = stage.learning_rates.get(name, 0.0)
        part.requires_grad_(rate > 0)
        if rate > 0:
            decay = stage.weight_decay.get(name, 0.0)
            groups.append({"params": list(part.parameters()), "lr": rate, "base": rate, "weight_decay": decay})
    return Adam(groups)


def rate_factor(stage: FitStage, epoch: int, progress: float) -> float:
    """Factor on the learning rates; ``progress`` in [0, 1) is the share of the stage that is done. Has no state."""
    if stage.decay == "step":
        return stage.decay_factor ** (epoch // stage.decay_epochs)
    if stage.decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1.0


class FitEpoch:
    """One epoch of a fit stage, from any step on, as an iterator over the terms of each step (means over processes)."""

    def __init__(
        self,
        processes: Processes,
        objective: nn.Module,
        draw: Callable[[torch.Generator], Tensor | None],
        optimizer: torch.optim.Optimizer,
        stage: GradientStage,
        source: BatchSource,
        position: Sequence[int | str],
        epoch: int,
    ) -> None:
        """``position`` names seed and stage; every random number of the epoch follows from it.

        Objective and optimizer are as `Processes.setup` gave them; ``draw`` gives the negatives of a step.
        """
        self.processes, self.objective, self.draw, self.optimizer = processes, objective, draw, optimizer
        self.stage, self.source, self.epoch = stage, source, epoch
        self.position = (*position, epoch)
        batch_size = min(stage.batch_size, len(source))
        order = shuffled(len(source), batch_size, derive_seed(*self.position, "order"))
        rank, world = processes.global_rank, processes.world_size
        self.sizes = [len(indices) for indices in order]
        self.order = shares(order, rank, world)
        # A process with a smaller share of the last batch counts for less: then the mean over processes is the mean
        # over images, as in one process.
        self.weights = [len(range(rank, size, world)) * world / size for size in self.sizes]

    def __len__(self) -> int:
        return len(self.order)

    def steps(self, start: int = 0) -> Iterator[tuple[int, Terms]]:
        self.objective.train()
        batches = self.source.batches(self.order[start:], derive_seed(*self.position, "augment"))
        for step, batch in enumerate(batches, start):
            torch.manual_seed(derive_seed(*self.position, step, "dropout"))
            progress = (self.epoch + step / len(self)) / self.stage.epochs
            for group in self.optimizer.param_groups:
                group["lr"] = group["base"] * rate_factor(self.stage, self.epoch, progress)
            negatives = self.draw(generator(*self.position, step, "negatives"))
            terms = self.objective(batch.to(self.processes.device), negatives)
            self.optimizer.zero_grad(set_to_none=True)
            self.processes.backward(terms["total"] * self.weights[step])
            means = self._checked({name: value.detach() * self.weights[step] for name, value in terms.items()}, step)
            self.optimizer.step()
            yield step, means

    def _checked(self, terms: Mapping[str, Tensor], step: int) -> Terms:
        """Means over processes, or the end of the run before the weights are touched."""
        values = self.processes.sum(torch.stack(list(terms.values())).double()) / self.processes.world_size
        means = dict(zip(terms, values.tolist(), strict=True))
        if broken := [name for name, value in means.items() if not math.isfinite(value)]:
            raise not_finite(f"{self.stage.stage}, epoch {self.epoch + 1}, step {step + 1}", broken)
        return means


LARGEST_ENTROPY = 1e4
"""In units of what guessing has, ln C. Logits of that size come of weights that have burst, and nothing mends them."""


def burst(where: str, cross_entropy: float, classes: int) -> DaplError | None:
    """The error for a loss that has exploded without being infinite; None where it can still be learned from.

    >>> burst("joint, epoch 1", 2.5, 10) is None
    True
    >>> "exploded to 8e+13, where guessing has 2.3" in str(burst("joint, epoch 1", 8e13, 10))
    True
    """
    guessing = math.log(max(2, classes))
    if cross_entropy <= LARGEST_ENTROPY * guessing:
        return None
    return DaplError(
        f"{where}: the cross-entropy has exploded to {cross_entropy:.3g}, where guessing has {guessing:.1f}. The last "
        "good checkpoint is kept; lower schedule.<n>.learning_rates or the loss weights."
    )


def not_finite(where: str, what: Sequence[str]) -> DaplError:
    return DaplError(
        f"{where}: the loss is not finite ({', '.join(what)}). The last good checkpoint is kept; lower "
        "schedule.<n>.learning_rates or the loss weights, or use 32-true precision."
    )


@torch.no_grad()
def all_responses(
    model: PrototypeModel,
    source: BatchSource,
    order: Sequence[Tensor],
    processes: Processes,
    advance: Advance,
    what: Sequence[Response] = ("scores",),
) -> dict[Response, Tensor]:
    """What is asked for of every image in one pass, n×P each on the CPU, the same in every process."""
    model.eval()
    tables = {name: torch.zeros(len(source), model.score_count) for name in what}
    for batch in source.batches(own_batches(order, processes)):
        with processes.autocast():
            output = run_model(model, batch.to(processes.device))
        for name, table in tables.items():
            table[batch.indices] = getattr(output, name).float().cpu()
        advance(len(batch))
    return {name: sum_rows(table, processes) for name, table in tables.items()}


def of_table(scores: Tensor) -> Scores:
    """The rows of a table n×P that is at hand."""
    return lambda order: (scores[indices.to(scores.device)] for indices in order)


def streamed_scores(
    model: PrototypeModel, source: BatchSource, processes: Processes, what: Response = "scores"
) -> Scores:
    """A table of what `all_responses` gives, computed when it is wanted: memory for one batch.

    The rows of a batch are shared out among the processes, and each of them gets all.
    """

    def batches(order: Sequence[Tensor]) -> Iterator[Tensor]:
        model.eval()
        rank, world = processes.global_rank, processes.world_size
        for indices, batch in zip(order, source.batches(shares(order, rank, world)), strict=True):
            table = torch.zeros(len(indices), model.score_count)
            if rank < len(indices):  # else the process has borrowed an image that another one looks at
                with torch.no_grad(), processes.autocast():
                    output = run_model(model, batch.to(processes.device))
                table[rank::world] = getattr(output, what).float().cpu()
            yield sum_rows(table, processes)

    return batches


@torch.no_grad()
def weigh_heads(model: PrototypeModel, scores: Scores, labels: Tensor, order: Sequence[Tensor]) -> Tensor:
    """w[c,h] = a_h / mean of a, with a_h = (r_h + 1)/(n + C): of n images, head h alone knows the class of r_h.

    As if it had been right in one of C images more: its say may be small, but is not nothing. For systems with one
    prototype per class and head. Returns r_h / n: N.
    """
    heads, classes = model.prototypes.groups, model.classes
    kept = model.prototypes.kept
    right = torch.zeros(heads, dtype=torch.double)
    for indices, rows in zip(order, scores(order), strict=True):
        named = rows.to(kept.device).masked_fill(~kept, -torch.inf).unflatten(1, (classes, heads)).argmax(1)
        right += (named.cpu() == labels[indices].unsqueeze(1)).sum(0)
    say = (right + 1) / (len(labels) + classes)
    (weight,) = model.components()["classifier"].parameters()
    weight.copy_((say / say.mean()).expand_as(weight))
    return right / len(labels)


def last_layer(
    model: PrototypeModel,
    scores: Tensor | Scores,
    labels: Tensor,
    stage: LastLayerStage,
    position: Sequence[int | str],
    after_epoch: Callable[[int, Terms], None],
) -> None:
    """Cross-entropy + λ·Σ|w| on scores. With a table of all of them, n×P, a step is a small matrix product, whatever
    the size of the images; where that is too large, `streamed_scores` computes them in every epoch.
    """
    classifier = model.components()["classifier"]
    model.requires_grad_(False)
    classifier.requires_grad_(True)
    optimizer = Adam(classifier.parameters(), lr=stage.learning_rate)
    device = next(classifier.parameters()).device
    labels = labels.to(device)
    read = of_table(scores.to(device)) if isinstance(scores, Tensor) else scores
    for epoch in range(stage.epochs):
        sums = torch.zeros(2, dtype=torch.double)
        order = shuffled(len(labels), stage.batch_size, derive_seed(*position, epoch, "order"))
        for indices, picked in zip(order, read(order), strict=True):
            rows = indices.to(device)
            logits = model.classify(picked.to(device))
            loss = losses.cross_entropy(logits, labels[rows])
            penalty = losses.l1(model.penalised_weights())
            optimizer.zero_grad(set_to_none=True)
            (loss + stage.l1 * penalty).backward()
            optimizer.step()
            right = (logits.argmax(1) == labels[rows]).sum()
            sums += torch.stack([loss.detach() * len(rows), right]).cpu()
        means = (sums / len(labels)).tolist()
        if not math.isfinite(means[0]):
            raise DaplError(f"last_layer, epoch {epoch + 1}: the loss is not finite; lower its learning_rate.")
        if error := burst(f"last_layer, epoch {epoch + 1}", means[0], logits.shape[1]):
            raise error
        after_epoch(epoch, {"cross_entropy": means[0], "accuracy": means[1]})
