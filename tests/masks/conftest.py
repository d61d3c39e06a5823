"""What the tests of masks share: a photograph of a face, and a SAM small enough to be made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from skimage import data


@pytest.fixture(scope="session")
def astronaut() -> np.ndarray:
    """uint8 512×512×3: one face, looking at the camera."""
    return data.astronaut()


@pytest.fixture(scope="session")
def landmarks(astronaut: np.ndarray, face_model: Path) -> np.ndarray:
    from dapl.masks.faces import FaceFinder

    with FaceFinder(face_model) as finder:
        [face] = finder(astronaut)
    return face
