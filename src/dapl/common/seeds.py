"""Random numbers as a pure function of where in a run they are needed, so that nothing has to be saved to resume."""

import hashlib

import torch


def derive_seed(*position: int | str) -> int:
    """A 63-bit seed from a position such as (run seed, "order", stage, epoch)."""
    text = "/".join(str(part) for part in position)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*position: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(*position))
