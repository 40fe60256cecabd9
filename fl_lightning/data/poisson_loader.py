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
        coins: returns a number for each person; a person's examples are in a batch if its number is below the rate. The numbers
            of batches continue over iterations.
        persons: the person of each example, int64, shape (n,); None if each example is a person of its own.

    Attributes:
        expected: B.
        rate: B / n, the probability that a person is in a batch.
        expected_persons: the average number of persons in a batch.
        drawn: for each batch given out and not yet processed, the persons of its examples, numbered from 0; None if it is
            empty. An empty batch still holds one example, because networks need a non-empty batch; this example must not
            count.
        setting: the setting that asks for these batches, for messages.
    """

    setting = "federation.options"

    def __init__(self, size: int, batch_size: int, coins: Coins, persons: Tensor | None = None) -> None:
        self.expected = min(batch_size, size)
        self.rate = self.expected / size
        self.drawn: deque[Tensor | None] = deque()
        self.size, self._coins, self._iterations = size, coins, 0
        self._persons = torch.arange(size) if persons is None else torch.unique(persons, return_inverse=True)[1]
        self._count = int(self._persons.max()) + 1
        self.expected_persons = self.expected if self._count == size else self.rate * self._count

    def __len__(self) -> int:
        return -(-self.size // self.expected)

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()  # from batches that were drawn ahead and never used
        first, self._iterations = self._iterations * len(self), self._iterations + 1
        for number in range(first, first + len(self)):
            chosen = (self._coins(number, self._count) < self.rate)[self._persons].nonzero().flatten()
            self.drawn.append(torch.unique(self._persons[chosen], return_inverse=True)[1] if chosen.numel() else None)
            yield chosen.tolist() or [0]


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
