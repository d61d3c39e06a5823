"""Drawn birds with exact part masks: a data set that needs no download."""

from dapl.data.toybirds.dataset import ToyBirds, write
from dapl.data.toybirds.image import THINGS
from dapl.data.toybirds.species import PARTS

__all__ = ["PARTS", "THINGS", "ToyBirds", "write"]
