"""Clients in arrays of NumPy or in Parquet files, each read when it is drawn. Copy the class that fits your files.

    PYTHONPATH=docs/examples fl-lightning fit ... --data.datamodule file_clients.ParquetClients \\
        --data.datamodule.path data/clients.parquet --data.datamodule.fields "[x, y]" --data.partitioner null
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow import dataset
from torch.utils.data import TensorDataset

from fl_lightning import LazyClients


class ArrayClients(LazyClients):
    """Map the arrays of a folder into memory, such as ``x.npy`` and ``y.npy``.

    ``ends.npy`` holds the number of rows up to each client's last one: ``np.cumsum(sizes)``.
    """

    def __init__(self, path: str, fields: list[str], batch_size: int = 32) -> None:
        super().__init__(batch_size)
        self.path, self.fields = Path(path), fields

    def setup(self, stage: str) -> None:
        """Open the arrays."""
        self.ends = np.load(self.path / "ends.npy")
        self.arrays = [np.load(self.path / f"{name}.npy", mmap_mode="r") for name in self.fields]

    def num_examples(self) -> Any:
        """Return the number of rows of each client."""
        return np.diff(self.ends, prepend=0)

    def open(self, client: int) -> TensorDataset:
        """Read a client's rows."""
        rows = slice(self.ends[client - 1] if client else 0, self.ends[client])
        return TensorDataset(*(torch.tensor(array[rows]) for array in self.arrays))


class ParquetClients(LazyClients):
    """Read a Parquet file, or a folder of them, with a column that names the client of each row.

    A client that is drawn reads the row groups that may hold its rows: sort the rows by client, and write small groups
    (``row_group_size=1000``). A field is a column of numbers, or of lists of equal length.
    """

    def __init__(self, path: str, fields: list[str], client_column: str = "client", batch_size: int = 32) -> None:
        super().__init__(batch_size)
        self.path, self.fields, self.client_column = path, fields, client_column

    def setup(self, stage: str) -> None:
        """Count the rows of each client."""
        self.rows = dataset.dataset(self.path, format="parquet")
        counted = self.rows.to_table([self.client_column])[self.client_column].value_counts()
        self.clients, self.sizes = (counted.field(name).to_pylist() for name in ("values", "counts"))

    def num_examples(self) -> list[int]:
        """Return the number of rows of each client."""
        return self.sizes

    def open(self, client: int) -> TensorDataset:
        """Read a client's rows."""
        own = self.rows.to_table(self.fields, filter=dataset.field(self.client_column) == self.clients[client])
        return TensorDataset(*(torch.tensor(own[name].to_pylist()) for name in self.fields))
