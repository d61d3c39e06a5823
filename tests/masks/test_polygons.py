"""Hulls and filled polygons against scipy and scikit-image, which do the same by other means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull
from skimage.measure import points_in_poly

from dapl.masks.polygons import bounding_box, convex_hull, fill_polygon


@given(seed=st.integers(0, 10_000), count=st.integers(3, 60))
@settings(max_examples=60, deadline=None)
def test_the_hull_has_scipys_corners(seed: int, count: int) -> None:
    points = np.random.default_rng(seed).normal(size=(count, 2)) * (30, 10)
    found, expected = convex_hull(points), points[ConvexHull(points).vertices]
    assert {tuple(point) for point in found.tolist()} == {tuple(point) for point in expected.tolist()}


@pytest.mark.parametrize("points", [np.zeros((0, 2)), np.ones((4, 2)), np.array([[0.0, 0], [1, 1], [2, 2], [3, 3]])])
def test_points_without_an_area_fill_nothing(points: np.ndarray) -> None:
    assert not fill_polygon(convex_hull(points), (5, 5)).any()


@given(seed=st.integers(0, 10_000), corners=st.integers(3, 12))
@settings(max_examples=60, deadline=None)
def test_a_pixel_belongs_to_the_polygon_its_centre_lies_in(seed: int, corners: int) -> None:
    """Any polygon, crossing itself and leaving the frame."""
    polygon = np.random.default_rng(seed).uniform(-10, 40, size=(corners, 2))
    rows, columns = np.mgrid[:25, :31]
    centres = np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], axis=1)
    expected = points_in_poly(centres, polygon).reshape(25, 31)
    np.testing.assert_array_equal(fill_polygon(polygon, (25, 31)), expected)


def test_neighbours_share_no_pixel_and_leave_no_gap() -> None:
    generator = np.random.default_rng(0)
    whole = np.array([[2.2, 1.1], [27.3, 3.4], [29.9, 22.8], [4.5, 24.6]])
    middle = generator.uniform(8, 20, size=2)
    pieces = [fill_polygon(np.array([whole[i], whole[(i + 1) % 4], middle]), (26, 32)) for i in range(4)]
    np.testing.assert_array_equal(np.sum(pieces, axis=0), fill_polygon(whole, (26, 32)).astype(int))


def test_bounding_box() -> None:
    assert bounding_box(np.array([[3.0, 9.0], [5.0, 1.0], [4.0, 4.0]])) == (3, 1, 5, 9)
