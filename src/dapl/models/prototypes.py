"""The prototype layer: where in an image each prototype finds its nearest patch, and how near that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.models.distances import NearestDistance, ShareBeside, nearest_locations, precise, squared_distances


class Nearest(NamedTuple):
    """For each image and prototype the patch that is nearest. Both B×P; location is row·W + column."""

    distances: Tensor
    locations: Tensor


def log_similarity(distances: Tensor, epsilon: float) -> Tensor:
    """Equation 2: log((d² + 1)/(d² + ε)). It falls as d² grows, so its maximum over places is where d² is least."""
    if not torch.is_grad_enabled():  # the same numbers, with less memory to write
        return (distances + 1).div_(distances + epsilon).log_()
    return torch.log((distances + 1) / (distances + epsilon))


def class_table(membership: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The prototypes of each class, long C×M, and which of them count, bool C×M; shorter rows are filled up with 0.

    membership: bool P×C, kept: bool P. A class need not have as many prototypes as another, and classes may share them.
    """
    return _counted(of_class_from(membership), kept)


def _rows_of_classes(prototypes: Tensor, classes: Tensor, number: int) -> Tensor:
    """From pairs, in the order of the prototypes, to long C×M: the prototypes of each class, then −1."""
    order = classes.argsort(stable=True)  # by class, and within one in the order of the prototypes
    prototypes, classes = prototypes[order], classes[order]
    sizes = classes.bincount(minlength=number)
    column = torch.arange(len(classes), device=classes.device) - (sizes.cumsum(0) - sizes)[classes]
    table = prototypes.new_full((number, int(sizes.max()) if len(classes) else 0), -1)
    table[classes, column] = prototypes
    return table


def _counted(of_class: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that can be looked up, 0 where there is none, and which places are there and count."""
    table = of_class.clamp_min(0)
    return table, (of_class >= 0) & counting[table] if len(counting) else of_class >= 0


def one_class_each(classes: int, each: int) -> Tensor:
    """Prototype j is of class j // each and of no other: long C×N, as `Prototypes` takes it.

    >>> one_class_each(classes=2, each=3)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    return torch.arange(classes * each).view(classes, each)


def of_class_from(membership: Tensor) -> Tensor:
    """bool P×C → long C×M: the prototypes of each class, then −1.

    >>> of_class_from(torch.tensor([[True, False], [True, True]]))
    tensor([[ 0,  1],
            [ 1, -1]])
    """
    prototypes, classes = membership.bool().nonzero(as_tuple=True)
    return _rows_of_classes(prototypes, classes, membership.shape[1])


_Method = TypeVar("_Method", bound=Callable)


def _in_full_precision(method: _Method) -> _Method:
    """Autocast ends at the embedding: a distance near ε = 1e-4 is rounding noise in half precision."""

    @wraps(method)
    def call(self: Prototypes, embedding: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(embedding.device.type, enabled=False):
            return method(self, embedding.to(self.vectors.dtype), *args, **kwargs)

    return cast(_Method, call)


class Prototypes(nn.Module):
    """P vectors in G groups; prototype j belongs to group j mod G and is compared with that group's embedding only.

    For DAPL a group is an attention head and P = C·N, so that prototype j = c·N + h (from 0) is class c's for head h.
    ``of_class`` says which prototypes a class has, ``kept`` whether one still counts: pruning never renumbers. What is
    kept grows with the prototypes, not with prototypes × classes.
    """

    of_class: Tensor
    """long C×M: the prototypes of each class in their order, −1 where it has fewer; classes may share them."""
    kept: Tensor

    def __init__(self, membership: Tensor, groups: int, width: int, epsilon: float = 1e-4) -> None:
        """membership: bool P×C, or long C×M as ``of_class`` (`one_class_each`), which many classes need."""
        super().__init__()
        if membership.dtype == torch.bool:
            count, of_class = len(membership), of_class_from(membership)
        else:
            count, of_class = int(membership.max()) + 1, membership.long()
        if count % groups:
            raise ValueError(f"{count} prototypes cannot be shared out evenly among {groups} groups.")
        self.groups = groups
        self.epsilon = epsilon
        self.vectors = nn.Parameter(torch.rand(count, width))
        self.register_buffer("of_class", of_class)
        self.register_buffer("kept", torch.ones(count, dtype=torch.bool))
        self.stand_in: Tensor | None = None
        """P×D that is compared instead of the vectors, while prototypes are embedded again at every step."""
        self._table: tuple[tuple, tuple[Tensor, Tensor]] | None = None

    def extra_repr(self) -> str:
        return f"{len(self)} × {self.vectors.shape[1]}, groups={self.groups}, epsilon={self.epsilon}"

    def __len__(self) -> int:
        return self.vectors.shape[0]

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.of_class)

    @property
    def membership(self) -> Tensor:
        """bool P×C, made anew by every call: whose each prototype is. Large where there are thousands of classes."""
        return self.of_images(torch.arange(self.classes, device=self.of_class.device)).T

    def by_class(self) -> tuple[Tensor, Tensor]:
        """The prototypes of each class, long C×M, and which of them are kept; made anew only when that has changed."""
        if self.of_class.is_inference() or self.kept.is_inference():  # such tensors do not count their changes
            return self.counted(self.kept)
        state = tuple((t.data_ptr(), t._version, t.device) for t in (self.of_class, self.kept))
        if self._table is None or self._table[0] != state:
            self._table = state, self.counted(self.kept)
        return self._table[1]

    def counted(self, counting: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `by_class`, where those count that are named (bool P), or all."""
        return _counted(self.of_class, torch.ones_like(self.kept) if counting is None else counting)

    def of_images(self, labels: Tensor) -> Tensor:
        """Which prototypes are of the class of each image, kept or not: long B → bool B×P."""
        rows = self.of_class[labels]
        found = torch.zeros(len(rows), len(self) + 1, dtype=torch.bool, device=rows.device)
        return found.scatter_(1, rows.where(rows >= 0, len(self)), True)[:, :-1]  # the last column takes the gaps

    def classes_of(self, prototypes: Sequence[int] | None = None) -> list[list[int]]:
        """The classes of each prototype that is named, or of all."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for label, row in enumerate(self.of_class.tolist()):
            for prototype in row:
                if prototype >= 0:
                    found[prototype].append(label)
        return found if prototypes is None else [found[prototype] for prototype in prototypes]

    def add_classes(self, prototype: int, classes: Iterable[int]) -> None:
        """Let a prototype be of these classes too."""
        membership = {(prototype, label) for label in classes}
        membership |= {(j, label) for label, row in enumerate(self.of_class.tolist()) for j in row if j >= 0}
        pairs = torch.tensor(sorted(membership), device=self.of_class.device)
        self.of_class = _rows_of_classes(pairs[:, 0], pairs[:, 1], self.classes)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """A class that has got shared prototypes has more of them than at the start; older files have a matrix."""
        name = prefix + "of_class"
        if prefix + "membership" in state_dict:
            state_dict[name] = of_class_from(state_dict.pop(prefix + "membership"))
        if name in state_dict and state_dict[name].shape != self.of_class.shape:
            self.of_class = torch.empty_like(state_dict[name], device=self.of_class.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def points(self) -> Tensor:
        """The vectors as the embedding is compared with them, P×D."""
        return self.vectors if self.stand_in is None else self.stand_in

    @property
    def group_of(self) -> Tensor:
        """Group (head) of each prototype, P."""
        return torch.arange(len(self), device=self.vectors.device) % self.groups

    @_in_full_precision
    def nearest(self, embedding: Tensor, allowed: Tensor | None = None) -> Nearest:
        """Nearest patch of each prototype in each image; distances carry gradient.

        Shapes: embedding B×G×D×H×W, allowed bool B×H×W or None.
        """
        patches, vectors = embedding.flatten(3), self._by_group()
        flat = None if allowed is None else allowed.flatten(1)
        locations = nearest_locations(patches, vectors, flat)
        distances = NearestDistance.apply(patches, vectors, locations)
        return Nearest(_prototype_order(distances), _prototype_order(locations))

    @_in_full_precision
    def distances(self, embedding: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """‖z − p‖² everywhere: B×P×H×W for all prototypes, or B×M×H×W for the M named.

        ``prototypes`` is long M (the same for each image) or B×M (each image its own, as those of its class).
        """
        patches = embedding.flatten(3)
        size = embedding.shape[-2:]
        if prototypes is None:
            patches, vectors = precise(patches), precise(self._by_group())
            grouped = squared_distances(patches, vectors).to(self.vectors.dtype)
            return grouped.transpose(1, 2).flatten(1, 2).unflatten(2, size)
        named = prototypes.expand(len(embedding), -1) if prototypes.dim() == 1 else prototypes
        vectors = self.points()[named].unsqueeze(3)  # B×M×D×1
        index = (named % self.groups)[:, :, None, None].expand(-1, -1, *patches.shape[2:])
        difference = patches.gather(1, index) - vectors
        return difference.square().sum(2).unflatten(2, size)

    def comparable(self, embedding: Tensor) -> Tensor:
        """An embedding B×G×D×… as `points` are compared with it."""
        return embedding

    def similarity(self, distances: Tensor) -> Tensor:
        return log_similarity(distances, self.epsilon)

    def activation(self, distances: Tensor) -> Tensor:
        """The similarity as a map shows it: 0 where nothing of the prototype is seen."""
        return self.similarity(distances)

    def slope(self, distances: Tensor) -> Tensor:
        """The derivative of `activation` by d², in a new tensor."""
        return (distances + 1).mul_(distances + self.epsilon).reciprocal_().mul_(self.epsilon - 1)

    @_in_full_precision
    def share_beside(self, embedding: Tensor, masks: Tensor) -> Tensor:
        """How much of the map of each prototype lies beside the object, B of equation 5; 0 for a map that is 0.

        What `dapl.training.losses.background_bias` makes of the maps of all prototypes, without keeping them.
        Shapes: embedding B×G×D×H×W, masks B×H×W in [0, 1] → B×P.
        """
        patches, beside = embedding.flatten(3), 1 - masks.flatten(1).to(embedding.dtype)
        shares = ShareBeside.apply(patches, self._by_group(), beside, self.activation, self.slope)
        return _prototype_order(shares)

    @_in_full_precision
    def across_groups(self, embedding: Tensor, prototypes: Tensor) -> Tensor:
        """Scores of each group's embedding with prototypes that are *not* its own (the negatives of equation 3).

        Shapes: embedding B×G×D×H×W, prototypes long G×M → scores B×G×M.
        """
        vectors = self.points()[prototypes].transpose(1, 2)  # G×D×M
        patches = embedding.flatten(3)
        locations = nearest_locations(patches, vectors)
        return self.similarity(NearestDistance.apply(patches, vectors, locations))

    def _by_group(self) -> Tensor:
        """P×D → G×D×Q with Q = P/G."""
        return self.points().unflatten(0, (-1, self.groups)).permute(1, 2, 0)


class UnitPrototypes(Prototypes):
    """Prototypes on the unit sphere, where half the squared distance is the cosine distance d = 1 − cos(z, p).

    `comparable` brings the embedding to unit length too. Similarity is PixPNet's: log(1/(d + ε) + 1).
    """

    def points(self) -> Tensor:
        return F.normalize(super().points(), dim=1)

    def comparable(self, embedding: Tensor) -> Tensor:
        return F.normalize(embedding, dim=2)

    def similarity(self, distances: Tensor) -> Tensor:
        return torch.log(1 / (distances / 2 + self.epsilon) + 1)

    def slope(self, distances: Tensor) -> Tensor:
        cosine_distance = (distances / 2).add_(self.epsilon)
        return (cosine_distance + 1).mul_(cosine_distance).reciprocal_().mul_(-0.5)


class CosinePrototypes(UnitPrototypes):
    """Prototypes on the unit sphere with s = σ·max(0, cos(z, p)), cos = 1 − ‖z − p‖²/2, and a scale σ that is learned.

    What points away counts as nothing, not as evidence against a class: a score, and a map, is never negative.
    `comparable` brings the embedding to unit length.

    With ``signed`` the score is σ·cos(z, p): a prototype that starts with its back to the patches of its class still
    learns. Maps stay σ·max(0, cos): they show what looks like the prototype, and where the score is negative nothing.

    >>> prototypes = CosinePrototypes(torch.eye(2, dtype=torch.bool), groups=1, width=2, signed=True)
    >>> distances = torch.tensor([0.0, 2.0, 4.0])  # the same direction, a right angle, the opposite one
    >>> prototypes.similarity(distances).tolist(), prototypes.activation(distances).tolist()
    ([5.0, 0.0, -5.0], [5.0, 0.0, 0.0])
    """

    def __init__(self, membership: Tensor, groups: int, width: int, scale: float = 5.0, signed: bool = False) -> None:
        super().__init__(membership, groups, width)
        nn.init.normal_(self.vectors)  # uniform in [0, 1) they would all point the same way
        self.scale = nn.Parameter(torch.tensor(scale))
        self.signed = signed

    def similarity(self, distances: Tensor) -> Tensor:
        cosine = 1 - distances / 2
        return self.scale * (cosine if self.signed else cosine.clamp_min(0))

    def activation(self, distances: Tensor) -> Tensor:
        return self.scale * (1 - distances / 2).clamp_min(0)

    def slope(self, distances: Tensor) -> Tensor:
        return (distances < 2).to(distances.dtype).mul_(-0.5 * self.scale.detach())


Similarity = Literal["log", "cosine"]


def make_prototypes(
    similarity: Similarity, membership: Tensor, groups: int, width: int, epsilon: float, scale: float
) -> Prototypes:
    """For the systems that leave the choice: ``epsilon`` is that of ``log``, ``scale`` where ``cosine`` starts."""
    if similarity == "cosine":
        return CosinePrototypes(membership, groups, width, scale, signed=True)
    return Prototypes(membership, groups, width, epsilon)


def _prototype_order(grouped: Tensor) -> Tensor:
    """B×G×Q → B×P with j = q·G + g."""
    return grouped.transpose(1, 2).flatten(1)
