"""Which example goes to which client: pure functions from labels to indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import DataError


def iid_indices(num_examples: int, num_clients: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle, then deal out evenly: sizes differ by at most one, every example goes to exactly one client.

    Returns:
        One int64 tensor of indices per client.

    Raises:
        DataError: if there are fewer examples than clients.
    """
    if num_examples < num_clients:
        raise DataError(
            f"{num_clients} clients cannot share {num_examples} examples: every client needs at least one. "
            "Set 'data.partitioner.num_clients' to at most the number of examples."
        )
    return list(torch.randperm(num_examples, generator=generator).tensor_split(num_clients))


def table_indices(labels: Tensor, counts: Sequence[Sequence[int]], generator: torch.Generator) -> list[Tensor]:
    """Draw exactly ``counts[k][c]`` examples of class c for client k, without replacement.

    Args:
        labels: class of each example, int64, shape (n,).
        counts: K rows of C counts.

    Returns:
        One shuffled int64 tensor of indices per client. Examples that the table does not ask for go to nobody.

    Raises:
        DataError: if the table asks for more examples of a class than there are.
    """
    wanted = torch.tensor(counts).sum(0)
    pieces: list[list[Tensor]] = [[] for _ in counts]
    for label in range(wanted.numel()):
        pool = (labels == label).nonzero().flatten()
        if wanted[label] > pool.numel():
            raise DataError(
                f"The partition table asks for {int(wanted[label])} examples of class {label}, but the training data have "
                f"{pool.numel()}. Lower column {label} of 'data.partitioner.counts', or set "
                "'data.partitioner.scale_to_fit' to true."
            )
        pool = pool[torch.randperm(pool.numel(), generator=generator)]
        taken = 0
        for client, row in enumerate(counts):
            pieces[client].append(pool[taken : taken + row[label]])
            taken += row[label]
    drawn = [torch.cat(piece) for piece in pieces]
    return [indices[torch.randperm(indices.numel(), generator=generator)] for indices in drawn]


def scale_table(counts: Sequence[Sequence[int]], available: Sequence[int]) -> list[list[int]]:
    """Shrink a table by one common factor until every class fits; a count above 0 stays at least 1.

    Args:
        counts: K rows of C counts.
        available: how many examples of each class there are, C numbers.

    Raises:
        DataError: if a class has fewer examples than clients that want it.
    """
    columns = list(zip(*counts, strict=True))
    factor = min([1.0] + [have / sum(column) for column, have in zip(columns, available, strict=True) if sum(column)])
    while True:
        scaled = [[max(1, int(count * factor)) if count else 0 for count in row] for row in counts]
        excess = [sum(c) - have for c, have in zip(zip(*scaled, strict=True), available, strict=True)]
        if max(excess) <= 0:
            return scaled
        if factor < 1e-6:
            label = excess.index(max(excess))
            raise DataError(
                f"Class {label} has {available[label]} examples for {sum(1 for c in columns[label] if c)} clients that want "
                f"it. Set column {label} of 'data.partitioner.counts' to 0 for some clients."
            )
        factor *= 0.98
