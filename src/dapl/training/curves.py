"""Curves for TensorBoard, where it is installed; metrics.jsonl has the same numbers without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Curves:
    """One point an epoch; after a resume, points that are drawn again replace the old ones."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.writer = SummaryWriter(str(folder), purge_step=first)

    def add(self, step: int, groups: Mapping[str, Mapping[str, float]]) -> None:
        if self.writer is not None:
            for group, values in groups.items():
                for name, value in values.items():
                    self.writer.add_scalar(f"{group}/{name}", value, step)
            self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
