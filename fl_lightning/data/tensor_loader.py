"""Serve batches of tensors in memory, in order or of examples that are drawn independently, as differential privacy assumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fl_lightning.data.client_part import ClientPart

_GATHERED_AT_ONCE = 2**22
"""Largest size of an epoch in bytes whose examples are gathered in advance; larger ones are gathered by batch."""


def beside(indices: Tensor, device: torch.device) -> Tensor:
    """Return indices on the device of the tensors that they index; a GPU copies them while the processor continues."""
    if indices.device == device or device.type != "cuda":
        return indices.to(device)
    return indices.pin_memory().to(device, non_blocking=True)


class TensorLoader:
    """Iterate over tensors of equal length in batches, with one indexing call per batch and tensor.

    Args:
        data: tensors, each of shape (n, ...), or a TensorDataset, which may have ``classes`` and ``feature_names``.
        batch_size: the examples per batch; the last batch may be smaller.
        indices: the examples to use, int64, shape (m,); all by default.
        generator: shuffles anew in each iteration; without it, examples are in the order of ``indices``.
        drop_last: whether to leave out a last batch that is smaller.
    """

    collate_fn = staticmethod(default_collate)  # batches are those of such a DataLoader without workers
    num_workers = 0

    def __init__(
        self,
        data: TensorDataset | Sequence[Tensor],
        batch_size: int,
        indices: Tensor | None = None,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
    ) -> None:
        self.whole = data if isinstance(data, TensorDataset) else TensorDataset(*data)
        self.tensors = self.whole.tensors
        self.batch_size = batch_size
        self.indices = indices
        self.generator = generator
        self.drop_last = drop_last

    @property
    def num_examples(self) -> int:
        """Return the number of examples, including those that ``drop_last`` leaves out."""
        return len(self.tensors[0]) if self.indices is None else self.indices.numel()

    def __len__(self) -> int:
        return -(-self.num_served // self.batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        size, tensors, order = self.num_examples, self.tensors, self.order()
        if order is not None and len({tensor.device for tensor in tensors}) == 1:
            order = beside(order, tensors[0].device)
        row = sum(tensor[:1].numel() * tensor.element_size() for tensor in tensors)
        if order is not None and row * size <= _GATHERED_AT_ONCE:  # a small epoch: one indexing call
            yield from self._split([tensor[order] for tensor in tensors])
            return
        for start in range(0, self.num_served, self.batch_size):
            stop = min(start + self.batch_size, size)
            chosen = slice(start, stop) if order is None else order[start:stop]
            yield [tensor[chosen] for tensor in tensors]

    def _split(self, gathered: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yield batches of examples that lie in their order: not views to autograd, so that they may be changed in place."""
        waiting = [list(torch.unsafe_split(tensor, self.batch_size))[::-1] for tensor in gathered]
        for _ in range(len(self)):
            yield [batches.pop() for batches in waiting]  # not kept here, with what a step may attach to them

    def order(self) -> Tensor | None:
        """Draw the order of one iteration: indices, int64, shape (m,), on the CPU; None for all examples in their order."""
        if self.generator is None:
            return self.indices
        shuffle = torch.randperm(self.num_examples, generator=self.generator)
        return shuffle if self.indices is None else self.indices[shuffle]

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """Return the examples one by one, as the dataset of a DataLoader, of which modules read the length."""
        return self.whole if self.indices is None else ClientPart(self.whole, self.indices.tolist())

    @property
    def num_served(self) -> int:
        """Return how many examples one iteration yields."""
        return self.num_examples - (self.num_examples % self.batch_size if self.drop_last else 0)

    def shard(self, rank: int, ranks: int) -> TensorLoader:
        """Return every ``ranks``-th example from ``rank`` on, so that each example is on exactly one rank."""
        indices = torch.arange(self.num_examples) if self.indices is None else self.indices
        return TensorLoader(self.whole, self.batch_size, indices[rank::ranks], self.generator)


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
