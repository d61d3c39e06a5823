"""An image to explain."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapl.data.build import build_splits
from dapl.explain.classifier import Classifier
from dapl.explain.draw import to_pil


@pytest.fixture(scope="session")
def bird(tmp_path_factory: pytest.TempPathFactory, classifier: Classifier) -> Path:
    """A test image as a file."""
    assert classifier.data is not None
    path = tmp_path_factory.mktemp("images") / "bird.png"
    to_pil(build_splits(classifier.data).test[3].image).save(path)
    return path
