"""What a page, a figure and a terminal say alike of an explained image."""

from __future__ import annotations

from dataclasses import dataclass, field

from dapl.explain.evidence import ClassEvidence, Evidence, Explanation
from dapl.explain.patches import NoPatches, Patch, PatchSource


@dataclass(frozen=True, repr=False)
class DescribedExplanation(Explanation):
    """An explanation that knows the name of its image, its model, and where training patches are found."""

    name: str = "image"
    about: str = ""
    """The model in a few words."""
    patches: PatchSource = field(default_factory=NoPatches)

    def close_up(self, row: Evidence) -> Patch | None:
        """The training patch of a prototype with some of what is beside it; None where it is not at hand."""
        patch = None if row.record is None else self.patches.patch(row.record)
        return None if patch is None else patch.close_up()

    @property
    def strongest(self) -> float:
        """The largest |contribution| that is listed, which bars are drawn against."""
        return max((abs(row.contribution) for e in self.classes for row in e.rows), default=0.0) or 1.0

    @property
    def with_attention(self) -> bool:
        return any(row.attention is not None for evidence in self.classes for row in evidence.rows)

    def role(self, evidence: ClassEvidence) -> str:
        """Why a class is explained."""
        if evidence.index == self.predicted:
            return "predicted"
        return "runner-up" if evidence.index == self.runner_up else "asked for"

    def notes(self, row: Evidence) -> tuple[list[str], list[str], list[str]]:
        """What is said of a prototype beside its numbers: its head and part, whose it is, and what is the matter."""
        head = [f"head {row.head}"] if self.heads > 1 else []
        part = [row.part] if row.part else []
        whose = [] if row.own else [f"of {', '.join(row.of)}"]
        matter = {"background": row.background, "switched off": row.switched_off}
        return head + part, whose, [text for text, so in matter.items() if so]
