"""Any partitioner of the package flwr-datasets."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.partition import Partition
from fl_lightning.partitioners.base import Partitioner

_LABEL, _INDEX = "label", "fl_lightning_index"


class FlowerLike(Protocol):
    """What partitioners of flwr-datasets offer."""

    @property
    def num_partitions(self) -> int:
        """K."""

    def load_partition(self, partition_id: int) -> Any:
        """The Hugging Face dataset of one client."""


class FlowerPartitioner(Partitioner):
    """Splits as a partitioner of flwr-datasets does, by a column ``label`` (pip install flwr-datasets).

    Examples keep their order, as in flwr-datasets without its shuffle: its IidPartitioner then gives each client a slice of
    data that may be sorted, so take :class:`~fl_lightning.IIDPartitioner` for that. The label is the only column there is; for
    domains and clients' ids there are DomainPartitioner and ColumnPartitioner.

    Args:
        partitioner: a new one, such as ``flwr_datasets.partitioner.DirichletPartitioner(10, partition_by="label", alpha=0.5)``;
            its own seed decides.
    """

    def __init__(self, partitioner: FlowerLike) -> None:
        if not all(hasattr(type(partitioner), name) for name in ("num_partitions", "load_partition")):
            raise ConfigurationError(
                f"'data.partitioner.partitioner' must be one of flwr-datasets, but is a {type(partitioner).__name__}. "
                "Name one by its class_path, e.g. flwr_datasets.partitioner.DirichletPartitioner."
            )
        self.partitioner = partitioner

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """See :meth:`Partitioner.partition`.

        Raises:
            DataError: with its own words, if it refuses the data.
        """
        try:
            from datasets import Dataset  # comes with flwr-datasets
        except ImportError as error:
            raise ConfigurationError("FlowerPartitioner needs the package flwr-datasets: pip install flwr-datasets.") from error
        columns = {_INDEX: range(num_examples)} | ({} if labels is None else {_LABEL: labels.numpy()})
        flower: Any = copy.deepcopy(self.partitioner)  # it takes one data set in its life
        try:
            flower.dataset = Dataset.from_dict(columns).with_format("numpy")
            parts = [torch.tensor(flower.load_partition(k)[:][_INDEX]) for k in range(flower.num_partitions)]
        except (ValueError, LookupError, ArithmeticError) as error:
            raise DataError(f"{type(flower).__name__} of flwr-datasets refuses: {error}") from error
        return Partition.of_parts(parts)
