"""Hold back parts of every client's examples for validation and test, in the classes' proportions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.functional.partition import Partition, offsets


def hold_out(
    partition: Partition,
    sizes: Tensor,
    labels: Tensor | None,
    generator: torch.Generator | Sequence[torch.Generator],
    persons: Tensor | None = None,
) -> tuple[Partition, Partition]:
    """Take a number of examples from each client, in the proportions of its classes, to within one example of each class.

    Args:
        partition: the examples of each client.
        sizes: the number of examples to take from each client, int64, shape (K,), at most what it holds.
        labels: the class of each example of the data set, int64, shape (n,); None ignores classes.
        generator: draws the examples; one for each client makes what is taken from it independent of the other clients.
        persons: the person of each example of the data set, int64, shape (n,): ``sizes`` then counts persons, and all examples
            that a client has of a person are taken together. None if each example is a person of its own.

    Returns:
        The remaining examples, and the examples taken. Indices ascend within each client.
    """
    if persons is not None:
        return _hold_out_persons(partition, sizes, labels, generator, persons)
    owners, order = partition.owners(), partition.order
    classes = torch.zeros_like(order) if labels is None else labels[order]
    known, classes = torch.unique(classes, return_inverse=True)  # -1 may mean 'unlabelled', and numbers may be large
    num_classes = max(1, known.numel())
    group = owners * num_classes + classes
    shuffle = _shuffled(partition.sizes, generator)
    place = shuffle[group[shuffle].argsort(stable=True)]  # by client and class, shuffled within
    groups, counts = torch.unique_consecutive(group[place], return_counts=True)
    wanted = _apportion(groups // num_classes, counts, sizes, partition.sizes, generator)
    rank = torch.arange(len(order)) - offsets(counts)[:-1].repeat_interleave(counts)
    taken = torch.empty(len(order), dtype=torch.bool)
    taken[place] = rank < wanted.repeat_interleave(counts)
    return _select(partition, owners, ~taken), _select(partition, owners, taken)


def count_units(partition: Partition, persons: Tensor | None) -> Tensor:
    """Return the number of each client's persons, int64, shape (K,); of its examples without ``persons``."""
    if persons is None:
        return partition.sizes
    owners = partition.owners()
    pairs = torch.unique(torch.stack([owners, persons[partition.order]], 1), dim=0)
    return torch.bincount(pairs[:, 0], minlength=len(partition))


def sharing_clients(partition: Partition, persons: Tensor) -> list[tuple[int, ...]]:
    """Return the clients of each person who has examples at several of them, each group once.

    Args:
        partition: the examples of each client.
        persons: the person of each example of the data set, int64, shape (n,).
    """
    pairs = torch.unique(torch.stack([persons[partition.order], partition.owners()], 1), dim=0)
    counts = torch.unique_consecutive(pairs[:, 0], return_counts=True)[1]
    return sorted({tuple(own.tolist()) for own in pairs[:, 1].split(counts.tolist()) if len(own) > 1})


def _hold_out_persons(
    partition: Partition,
    sizes: Tensor,
    labels: Tensor | None,
    generator: torch.Generator | Sequence[torch.Generator],
    persons: Tensor,
) -> tuple[Partition, Partition]:
    """Hold out persons with all their examples; a person's class is that of the first of these."""
    owners, order = partition.owners(), partition.order
    pairs, unit = torch.unique(torch.stack([owners, persons[order]], 1), dim=0, return_inverse=True)
    first = torch.full((len(pairs),), len(order)).scatter_reduce_(0, unit, torch.arange(len(order)), "amin")
    classes = None if labels is None else labels[order[first]]
    _, taken = hold_out(Partition.of_owners(pairs[:, 0], len(partition)), sizes, classes, generator)
    chosen = torch.zeros(len(pairs), dtype=torch.bool)
    chosen[taken.order] = True
    return _select(partition, owners, ~chosen[unit]), _select(partition, owners, chosen[unit])


def _shuffled(sizes: Tensor, generator: torch.Generator | Sequence[torch.Generator]) -> Tensor:
    """Return a permutation of 0 .. m - 1, where m is the sum of the clients' sizes; with a generator each, client by client."""
    if isinstance(generator, torch.Generator):
        return torch.randperm(int(sizes.sum()), generator=generator)
    own = [torch.randperm(size, generator=one) for size, one in zip(sizes.tolist(), generator, strict=True)]
    return torch.cat(own) + offsets(sizes)[:-1].repeat_interleave(sizes)


def _apportion(
    owner: Tensor, counts: Tensor, sizes: Tensor, totals: Tensor, generator: torch.Generator | Sequence[torch.Generator]
) -> Tensor:
    """Choose by largest remainders how many of each (client, class) group to take, so that each client gets its size."""
    quota = sizes[owner] * counts  # in parts of the client's total: whole numbers, so that equal remainders are equal
    whole, remainder = quota // totals[owner], quota % totals[owner]
    missing = sizes - torch.zeros_like(sizes).index_add_(0, owner, whole)
    groups = torch.bincount(owner, minlength=len(sizes))
    shuffle = _shuffled(groups, generator)  # breaks ties between equal remainders
    by_remainder = shuffle[remainder[shuffle].argsort(stable=True, descending=True)]
    by_owner = by_remainder[owner[by_remainder].argsort(stable=True)]
    rank = torch.arange(len(owner)) - offsets(groups)[:-1].repeat_interleave(groups)
    whole[by_owner] += (rank < missing[owner[by_owner]]).long()
    return whole


def _select(partition: Partition, owners: Tensor, chosen: Tensor) -> Partition:
    sizes = torch.bincount(owners[chosen], minlength=len(partition))
    part = Partition(partition.order[chosen], offsets(sizes), partition.names)
    spot = part.owners() * (int(partition.order.max()) + 1 if len(partition.order) else 1) + part.order
    return Partition(part.order[spot.argsort()], part.offsets, part.names)


def class_balanced(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Draw ``per_class`` examples of every class that occurs, or all of a smaller class, ascending int64."""
    shuffle = torch.randperm(len(labels), generator=generator)
    place = shuffle[labels[shuffle].argsort(stable=True)]
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - offsets(counts)[:-1].repeat_interleave(counts)
    return place[rank < per_class].sort().values
