"""Drawn birds with exact part masks: a data set that needs no download."""

from dapl.data.toybirds.dataset import ToyBirds, write
from dapl.data.toybirds.species import PARTS

__all__ = ["PARTS", "ToyBirds", "write"]
