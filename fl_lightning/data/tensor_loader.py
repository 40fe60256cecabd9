"""Serve batches of in-memory tensors, indexed a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        if order is not None and self._row_bytes() * size <= _GATHERED_AT_ONCE:  # a small epoch: one indexing call
            yield from self._split([tensor[order] for tensor in tensors])
            return
        for start in range(0, self.num_served, self.batch_size):
            stop = min(start + self.batch_size, size)
            if order is None:
                yield [tensor[start:stop] for tensor in tensors]
            else:
                yield [tensor[order[start:stop]] for tensor in tensors]

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

    def _row_bytes(self) -> int:
        return sum(tensor[:1].numel() * tensor.element_size() for tensor in self.tensors)

    def shard(self, rank: int, ranks: int) -> TensorLoader:
        """Return every ``ranks``-th example from ``rank`` on, so that each example is on exactly one rank."""
        indices = torch.arange(self.num_examples) if self.indices is None else self.indices
        return TensorLoader(self.whole, self.batch_size, indices[rank::ranks], self.generator)
