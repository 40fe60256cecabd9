"""Divide a data set by one of its columns: your own client ids, or the domain of each example."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.partitioners.base import Partitioner, require_examples


class ColumnPartitioner(Partitioner):
    """Create one client for each value of a column of the training set, in the order of the sorted values.

    The column is an attribute of the dataset with one value per example, number or text (``dataset.user_id``), or a
    column of a Hugging Face dataset. For a ConcatDataset whose parts lack ``domains``, it is the number of the part.

    Args:
        column: the name of the column.
        min_examples: the smallest client, at least 1. Smaller ones are left out with a warning; 1 keeps every client.
    """

    needs_labels = False

    def __init__(self, column: str, min_examples: int = 1) -> None:
        require(bool(column), "data.partitioner.column", "the name of a column", column)
        require(min_examples >= 1, "data.partitioner.min_examples", "at least 1", min_examples)
        self.column, self.min_examples = column, min_examples

    def partition_by(self, codes: Tensor, names: Sequence[str]) -> Partition:
        """Split by the values of the column.

        Args:
            codes: the value of each example, 0 .. V - 1, int64, shape (n,).
            names: the names of the V values.

        Raises:
            DataError: if no client has enough examples.
        """
        require_examples(len(codes))
        counts = torch.bincount(codes, minlength=len(names))
        kept = counts >= self.min_examples
        if not kept.any():
            raise DataError(
                f"No value of the column '{self.column}' has {self.min_examples} examples; the largest has "
                f"{int(counts.max())}. Lower 'data.partitioner.min_examples'."
            )
        if not kept.all():
            left = [name for name, keep in zip(names, kept.tolist(), strict=True) if not keep]
            warnings.warn(
                f"{len(left)} of {len(names)} values of the column '{self.column}' have fewer than {self.min_examples} examples"
                f" and are left out: {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}.",
                stacklevel=2,
            )
        client = torch.where(kept, kept.cumsum(0) - 1, -1)
        chosen = tuple(name for name, keep in zip(names, kept.tolist(), strict=True) if keep)
        return Partition.of_owners(client[codes], len(chosen), chosen)

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split like :meth:`partition_by`, with the client of each example in place of ``labels``."""
        if labels is None:
            raise DataError(f"{type(self).__name__} needs the values of the column '{self.column}': use 'partition_by'.")
        values, codes = torch.unique(labels, return_inverse=True)
        return self.partition_by(codes, [str(value) for value in values.tolist()])


class DomainPartitioner(ColumnPartitioner):
    """Create one client, or a few, for each domain: each folder or data set that the training set consists of.

    Use it with :class:`~fl_lightning.ImageFolderDataModule` over root/domain/class/image, with a ConcatDataset, or with any
    dataset that has an attribute ``domains``. Clients are named after their domains.

    Args:
        clients_per_domain: the number of clients that share a domain, evenly and at random; at least 1.
        seed: the seed of the draw, used if a domain has several clients.
    """

    def __init__(self, clients_per_domain: int = 1, seed: int = 0) -> None:
        super().__init__("domains")
        require(clients_per_domain >= 1, "data.partitioner.clients_per_domain", "at least 1", clients_per_domain)
        self.clients_per_domain, self.seed = clients_per_domain, seed

    def partition_by(self, codes: Tensor, names: Sequence[str]) -> Partition:
        """Split by domain; see :meth:`ColumnPartitioner.partition_by`.

        Raises:
            DataError: if a domain has fewer examples than clients.
        """
        require_examples(len(codes))
        several = self.clients_per_domain
        if several == 1:
            return super().partition_by(codes, names)
        shuffle = torch.randperm(len(codes), generator=generator(self.seed, "DomainPartitioner"))
        place = shuffle[codes[shuffle].argsort(stable=True)]
        counts = torch.bincount(codes, minlength=len(names))
        if int(counts.min()) < several:
            least = names[int(counts.argmin())]
            raise DataError(
                f"The domain '{least}' has {int(counts.min())} examples for {several} clients. Lower "
                "'data.partitioner.clients_per_domain'."
            )
        rank = torch.empty_like(codes)
        rank[place] = torch.arange(len(codes)) - (counts.cumsum(0) - counts)[codes[place]]
        chosen = tuple(f"{name} {part}" for name in names for part in range(several))
        return Partition.of_owners(codes * several + rank % several, len(chosen), chosen)
