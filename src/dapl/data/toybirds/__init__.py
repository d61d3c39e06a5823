"""Drawn birds with exact part masks: a data set that needs no download."""

from dapl.data.toybirds.dataset import ToyBirds
from dapl.data.toybirds.looks import PARTS
from dapl.data.toybirds.on_disk import write

__all__ = ["PARTS", "ToyBirds", "write"]
