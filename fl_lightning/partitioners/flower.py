"""Wrap any partitioner of the package flwr-datasets."""

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
    """Describe the interface of flwr-datasets' partitioners."""

    @property
    def num_partitions(self) -> int:
        """Return K."""

    def load_partition(self, partition_id: int) -> Any:
        """Return the Hugging Face dataset of one client."""


class FlowerPartitioner(Partitioner):
    """Split with a partitioner of flwr-datasets, by a column ``label`` (pip install flwr-datasets).

    Examples keep their order, as in flwr-datasets without its shuffle. Its IidPartitioner would give each client a slice of
    possibly sorted data; use :class:`~fl_lightning.IIDPartitioner` instead. The label is the only available column; for
    domains and client ids, use DomainPartitioner and ColumnPartitioner.

    Args:
        partitioner: a new one, such as ``flwr_datasets.partitioner.DirichletPartitioner(10, partition_by="label", alpha=0.5)``;
            its own seed applies.
    """

    def __init__(self, partitioner: FlowerLike) -> None:
        if not all(hasattr(type(partitioner), name) for name in ("num_partitions", "load_partition")):
            raise ConfigurationError(
                f"'data.partitioner.partitioner' must be a partitioner of flwr-datasets, but is a "
                f"{type(partitioner).__name__}. Set its class_path, e.g. to flwr_datasets.partitioner.DirichletPartitioner."
            )
        self.partitioner = partitioner

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            ConfigurationError: if flwr-datasets is not installed.
            DataError: if the wrapped partitioner rejects the data; the message quotes it.
        """
        try:
            from datasets import Dataset  # comes with flwr-datasets
        except ImportError as error:
            raise ConfigurationError("FlowerPartitioner needs the package flwr-datasets: pip install flwr-datasets.") from error
        columns = {_INDEX: range(num_examples)} | ({} if labels is None else {_LABEL: labels.numpy()})
        flower: Any = copy.deepcopy(self.partitioner)  # an instance accepts only one data set
        try:
            flower.dataset = Dataset.from_dict(columns).with_format("numpy")
            parts = [torch.tensor(flower.load_partition(k)[:][_INDEX]) for k in range(flower.num_partitions)]
        except (ValueError, LookupError, ArithmeticError) as error:
            raise DataError(f"{type(flower).__name__} of flwr-datasets rejects the data: {error}") from error
        return Partition.of_parts(parts)
