"""Prototype-based image classifiers that show their reasons. `load` is the way in; everything else is a submodule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dapl.explain.classifier import Classifier


def load(folder: str | Path) -> Classifier:
    """The model of a run directory, or of a folder that `dapl export` wrote, ready to predict and to explain.

    >>> import dapl
    >>> model = dapl.load("runs/cub20")                   # doctest: +SKIP
    >>> model.predict("bird.jpg").class_name              # doctest: +SKIP
    '001.Black_footed_Albatross'
    >>> model.explain("bird.jpg").save("bird.html")       # doctest: +SKIP
    """
    from dapl.explain.classifier import Classifier  # torch takes its time: not before it is needed
    from dapl.export.hub import is_exported, load_exported
    from dapl.runs.loading import load_run

    folder = Path(folder).expanduser()
    return load_exported(folder).classifier if is_exported(folder) else Classifier.of_run(load_run(folder))
