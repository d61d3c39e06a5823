"""Docstrings as the site shows them: examples as code, formulas as they are written (an extension of griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ ]*)>>> .*(?:\n\1.*\S.*)*", flags=re.MULTILINE)
FORMULA = re.compile(r"^([ ]*)\.\. math:: (.*(?:\n\1 +\S.*)*)", flags=re.MULTILINE)


class SiteDocstrings(griffe.Extension):
    """Fences every doctest and formula: in Markdown `>>>` would be a quotation in a quotation in a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The package itself is no object to griffe."""
        self.on_object(obj=pkg)


def as_markdown(text: str) -> str:
    r"""A docstring with its examples and formulas in fences.

    >>> as_markdown("Adds.\n\n>>> 1 + 1\n2\n\nThe end.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThe end.'
    """
    text = EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
    text = FORMULA.sub(_formula, text)
    text = re.sub(r" *# doctest: .*$", "", text, flags=re.MULTILINE)
    return re.sub(r":math:(`[^`]+`)", r"\1", text)


def _formula(found: re.Match[str]) -> str:
    lines = [found[1] + line.strip() for line in found[2].splitlines()]
    return "\n".join([f"{found[1]}```latex", *lines, f"{found[1]}```"])
