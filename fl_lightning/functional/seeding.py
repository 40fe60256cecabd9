"""Derive random numbers from their purpose, independent of earlier draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def derive_seed(*key: int | str) -> int:
    """Return a 63-bit seed from a key such as ``(seed, round_idx, client, "shuffle")``.

    Equal keys give equal seeds on every machine and rank; different keys give independent ones (BLAKE2b).

    >>> derive_seed(0, 1, "cohort") == derive_seed(0, 1, "cohort")
    True
    >>> derive_seed(0, 1, 2) == derive_seed(0, 12)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*key))


@contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch (CPU and ``device``), numpy and ``random`` for the block, then restore their states."""
    before = RandomNumbers.now(device)
    torch.default_generator.manual_seed(seed)
    if before.cuda is not None:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        before.restore()


@dataclass(frozen=True)
class RandomNumbers:
    """Hold the states of the global generators of torch, numpy and ``random`` at one moment.

    Attributes:
        cpu: the state of torch's generator.
        cuda: the state of the generator of ``device``; None on a CPU.
        numpy: the state of numpy's generator.
        python: the state of ``random``.
        device: the device.
    """

    cpu: Tensor
    cuda: Tensor | None
    numpy: Any
    python: Any
    device: torch.device

    @classmethod
    def now(cls, device: torch.device) -> RandomNumbers:
        """Return the current states."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate(), device)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the numbers that followed this moment again in the block, then restore the states before the block."""
        current = RandomNumbers.now(self.device)
        self.restore()
        try:
            yield
        finally:
            current.restore()


GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What :func:`reseed` can seed."""


def reseed(value: object, seed: int) -> None:
    """Seed a generator of torch, NumPy or ``random``; leave any other object alone."""
    if isinstance(value, torch.Generator):
        value.manual_seed(seed)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = type(value.bit_generator)(seed).state
    elif isinstance(value, np.random.RandomState):
        value.seed(seed % 2**32)
    elif isinstance(value, random.Random):
        value.seed(seed)
