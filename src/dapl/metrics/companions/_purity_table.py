"""The best images of each prototype as a table of fixed size, which batches and processes can be merged into."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics.companions._checks import check_flags
from dapl.metrics.companions._purity import purity, ranked, top_images
from dapl.metrics.functional._checks import shape_of, which


@dataclass(frozen=True)
class PurityTable:
    """Tables (P, top, 2 + 2·G): score, number of the image, presence and visibility of the G parts.

    One tensor holds it all, because processes are merged a tensor at a time. float64, in which scores and numbers of
    images are exact; a row that is still free has the score −∞.
    """

    prototypes: int
    parts: int
    top: int = 10

    def __post_init__(self) -> None:
        for name in ("prototypes", "parts", "top"):
            if getattr(self, name) < 1:
                raise DaplError(f"purity needs at least 1 of {name}, but was made for {getattr(self, name)}.")

    def empty(self) -> Tensor:
        table = torch.zeros(self.prototypes, self.top, 2 + 2 * self.parts, dtype=torch.float64)
        table[..., 0], table[..., 1] = -torch.inf, torch.inf
        return table

    def rows(
        self, scores: Tensor, present: Tensor, visible: Tensor, images: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """The best of a batch: scores (B, P), present (B, P, G), visible (B, G), images (B), kept (P) or (B, P)."""
        check_flags(present, "present", "images, prototypes, parts")
        wanted = (len(scores), self.prototypes, self.parts)
        if present.shape != wanted or scores.shape != wanted[:2]:
            raise DaplError(
                f"this metric was made for {self.prototypes} prototypes and {self.parts} parts, "
                f"but scores are {shape_of(scores)} and present is {shape_of(present)}."
            )
        visible = which(visible, present, torch.Size((wanted[0], wanted[2])), "visible", "parts")
        if not bool(torch.isfinite(scores).all()):
            raise DaplError("scores hold NaN or infinite values: look for a model that diverged.")
        scores = scores.detach().where(which(kept, scores, scores.shape, "kept", "prototypes"), -torch.inf)
        chosen = top_images(scores, self.top, images)  # (P, at most top)
        owner = torch.arange(self.prototypes, device=chosen.device).unsqueeze(1)
        columns = (scores[chosen, owner].unsqueeze(2), images.to(chosen.device)[chosen].unsqueeze(2))
        flags = (present[chosen, owner], visible[chosen])
        return torch.cat([part.double() for part in (*columns, *flags)], dim=2)

    def best(self, rows: Tensor) -> Tensor:
        """The table of the best among (P, any number, 2 + 2·G)."""
        order = ranked(rows[..., 0], rows[..., 1])[:, : self.top]
        return rows.gather(1, order.unsqueeze(2).expand(-1, -1, rows.shape[2]))

    def merge(self, tables: Tensor) -> Tensor:
        """One table of those of several processes, (W, P, top, 2 + 2·G)."""
        return self.best(tables.transpose(0, 1).flatten(1, 2))

    def purity(self, table: Tensor) -> Tensor:
        """Purity of each prototype, (P)."""
        present, visible = table[..., 2:].bool().split(self.parts, dim=-1)
        return purity(present, visible & (table[..., :1] > -torch.inf))
