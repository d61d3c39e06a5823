"""ProtoPShare's merging: prototypes that answer alike on the training pictures become one, of all their classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dapl.models.contract import PrototypeModel
from dapl.training.records import PrototypeRecord

Plan = list[tuple[int, list[int]]]
"""(the prototype that stays, those that become it)."""


def plan_merge(responses: Tensor, kept: Tensor, share: float) -> Plan:
    """Which prototypes become one. responses: n×P, the squared distance to the nearest patch of every training picture.

    Two prototypes are as far apart as their columns are: Σ_x (r_xp − r_xq)². A pair may merge when that is at most the
    k-th smallest distance of a prototype to its nearest neighbour, k = share of those that are kept. Greedy, in the
    order of their numbers: each takes in all that are near enough and still there.
    """
    alive = kept.nonzero().flatten()
    if len(alive) < 2:
        return []
    columns = responses[:, alive.cpu()].T.double()
    squares = torch.cdist(columns, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    squares.fill_diagonal_(torch.inf)
    number = max(1, round(share * len(alive)))
    near = squares <= squares.amin(1).sort().values[number - 1]
    gone = torch.zeros(len(alive), dtype=torch.bool)
    plan: Plan = []
    for i in range(len(alive)):
        if gone[i]:
            continue
        taken = near[i] & ~gone
        taken[: i + 1] = False  # one before i that is near would have taken i in
        if taken.any():
            gone |= taken
            plan.append((int(alive[i]), alive[taken.to(alive.device)].tolist()))
    return plan


@torch.no_grad()
def merge(model: PrototypeModel, records: Sequence[PrototypeRecord], plan: Plan) -> None:
    """Weights are summed, classes united; what was merged is removed, not renumbered."""
    for stays, others in plan:
        model.absorb(stays, others)
        classes = [name for index in (stays, *others) for name in records[index].classes]
        records[stays].classes = sorted(dict.fromkeys(classes))
        for index in others:
            records[index].kept = False
            records[index].reason = f"merged into prototype {stays}"
