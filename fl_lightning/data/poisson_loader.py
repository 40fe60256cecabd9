"""Sample each example of a batch independently (Poisson sampling), as differential privacy assumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Coins = Callable[[int, int], Tensor]
"""Return ``count`` numbers in [0, 1), shape (count,), for a batch's number, from 0; it is asked once for each number."""


class PoissonBatches:
    """Draw the positions 0 .. size - 1 of the examples of each batch, anew in each iteration.

    Args:
        size: the number of examples n of a client.
        batch_size: the average number of examples B of a batch; at most n.
        coins: returns a number for each example; an example is in a batch if its number is below the rate. The numbers of
            batches continue over iterations.

    Attributes:
        expected: B.
        rate: B / n, the probability that an example is in a batch.
        empty: for each batch given out and not yet processed, whether it is empty. An empty batch still holds one example,
            because networks need a non-empty batch; this example must not count.
    """

    def __init__(self, size: int, batch_size: int, coins: Coins) -> None:
        self.expected = min(batch_size, size)
        self.rate = self.expected / size
        self.empty: deque[bool] = deque()
        self.size, self._coins, self._iterations = size, coins, 0

    def __len__(self) -> int:
        return -(-self.size // self.expected)

    def __iter__(self) -> Iterator[list[int]]:
        self.empty.clear()  # from batches that were drawn ahead and never used
        first, self._iterations = self._iterations * len(self), self._iterations + 1
        for number in range(first, first + len(self)):
            chosen = (self._coins(number, self.size) < self.rate).nonzero().flatten().tolist()
            self.empty.append(not chosen)
            yield chosen or [0]


class PoissonLoader:
    """Serve Poisson-sampled batches of in-memory tensors, indexed a batch at a time.

    Args:
        tensors: tensors, each of shape (n, ...).
        indices: the client's examples, int64.
        batches: draws positions in ``indices``.
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
