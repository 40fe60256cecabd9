"""Batches into which every example comes by a coin of its own (Poisson sampling), as differential privacy counts on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Coins = Callable[[int, int], Tensor]
"""Of a batch's number, from 0, and a count: so many numbers of [0, 1), shape (count,). They are the same whenever asked for."""


class PoissonBatches:
    """Positions 0 .. size - 1 of the examples of each batch, drawn anew in each iteration.

    Args:
        size: n, examples of a client.
        batch_size: B, how many a batch has on average; at most n.
        coins: an example is in a batch if its number is below the rate. The number of a batch goes on over iterations.

    Attributes:
        expected: B.
        rate: B / n, the coins' probability.
        nobody: of each batch that was given out and not yet asked about, whether it is empty: then it has one example all the
            same, since networks want one, and that must not count.
    """

    def __init__(self, size: int, batch_size: int, coins: Coins) -> None:
        self.expected = min(batch_size, size)
        self.rate = self.expected / size
        self.nobody: deque[bool] = deque()
        self.size, self._coins, self._iterations = size, coins, 0

    def __len__(self) -> int:
        return -(-self.size // self.expected)

    def __iter__(self) -> Iterator[list[int]]:
        self.nobody.clear()  # of batches that were drawn ahead and never used
        first, self._iterations = self._iterations * len(self), self._iterations + 1
        for number in range(first, first + len(self)):
            chosen = (self._coins(number, self.size) < self.rate).nonzero().flatten().tolist()
            self.nobody.append(not chosen)
            yield chosen or [0]


class PoissonLoader:
    """Such batches of in-memory tensors, indexed a batch at a time.

    Args:
        tensors: each of shape (n, ...).
        indices: the client's examples, int64.
        batches: positions in ``indices``.
    """

    def __init__(self, tensors: Sequence[Tensor], indices: Tensor, batches: PoissonBatches) -> None:
        self._tensors, self._indices, self.batch_sampler = tuple(tensors), indices, batches
        self.batch_size = batches.expected

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[Tensor]]:
        for positions in self.batch_sampler:
            chosen = self._indices[torch.tensor(positions)]
            yield [tensor[chosen] for tensor in self._tensors]
