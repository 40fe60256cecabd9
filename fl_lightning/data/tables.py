"""Load your own numbers from CSV files: one file, or one for each client."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.data.in_memory import InMemoryDataModule, named_dataset
from fl_lightning.data.table_files import Columns, Table, read_table
from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import hold_out


class TableDataModule(InMemoryDataModule):
    """Load rows of CSV files with a header: features, float32, shape (n, d), and a target, shape (n,), if one is named.

    :class:`~fl_lightning.DomainPartitioner` creates one client for each file, or for each value of ``client_column``, sorted
    by name; :class:`~fl_lightning.IIDPartitioner` mixes the rows.

    Args:
        path: a CSV file; a folder with one file for each client, which names the client; or a file (or folder) for each
            client by name. Columns are matched by name: files must have the same columns, in any order.
        target: the column to predict; None for features alone, as K-means uses.
        test_path: the server's set in a separate file or folder, with the same features and target.
        test_share: the share of the rows, in [0, 1), drawn as the server's set if ``test_path`` is not given: from each
            client's rows (and each of its classes), leaving every client at least one. With 0, no set is held out: see
            ``server_set`` of the FederatedDataModule.
        client_column: the column of a single file that names the client of a row; it is not a feature.
        kind: the kind of the target: a number, float32, for ``regression``; a class, int64, coded 0 .. C - 1 in sorted order
            (by value if all are numbers) for ``classification``.
        standardize: whether to subtract the mean of each feature and divide by its standard deviation, both of the training
            part of all clients together. A constant feature is only centred, and the target stays unchanged.
        batch_size: the rows per training batch, B.
        eval_batch_size: the rows per evaluation batch.
        seed: the seed of the draw of a test share.

    Attributes:
        feature_names: the names of the features, after ``setup``; the data sets have them, too.
        mean: the mean of the training part before standardising, float64, shape (d,), after ``setup``.
        std: its standard deviation (of the population), float64, shape (d,); 1 for a constant feature.
    """

    def __init__(
        self,
        path: str | dict[str, str],
        target: str | None = "target",
        test_path: str | None = None,
        test_share: float = 0.2,
        client_column: str | None = None,
        kind: Literal["regression", "classification"] = "regression",
        standardize: bool = True,
        batch_size: int = 32,
        eval_batch_size: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        name = "data.datamodule."
        require(0 <= test_share < 1, name + "test_share", "at least 0 and below 1", test_share)
        known = kind in ("regression", "classification")
        require(known, name + "kind", "regression or classification", kind)
        sensible = target is not None or kind == "regression"
        require(sensible, name + "kind", "left out without a 'target'", kind)
        other = client_column is None or client_column != target
        require(other, name + "client_column", "a column other than 'target'", client_column)
        self.path, self.test_path, self.test_share = path, test_path, test_share
        self.target, self.client_column, self.kind = target, client_column, kind
        self.standardize = standardize
        self.seed = seed
        self.feature_names: tuple[str, ...] = ()
        self.mean, self.std = torch.zeros(0), torch.zeros(0)
        if not test_share and test_path is None:
            self.without_server_set()

    def load(self) -> tuple[TensorDataset, TensorDataset | None]:
        """Read the files, divide and standardise.

        Raises:
            DataError: if a file is invalid; the message names file, line and column.
        """
        held = None if self.test_path is None else Path(self.test_path)
        path = Path(self.path) if isinstance(self.path, str) else {name: Path(own) for name, own in self.path.items()}
        self._check_paths(path, held)
        columns = Columns(self.target, self.client_column, self.kind == "classification")
        table = read_table(path, columns, "data.datamodule.path")
        self.feature_names = table.names
        target, classes = self._targets(table)
        domains, clients = _coded(table.clients)
        if held is not None:
            other = read_table(held, columns, "data.datamodule.test_path", table)
            chosen, taken = torch.arange(len(table.features)), torch.arange(len(other.features))
            features, values = other.features, self._targets(other, classes)[0]
        else:
            chosen, taken = self._divided(domains, target if classes else None, len(table.features))
            features, values = table.features, target
        self._measure(table.features[chosen.numpy()])
        named: dict[str, Any] = {"feature_names": table.names} | ({"classes": classes} if classes else {})
        whose = {"domains": domains[chosen], "domains_names": clients} if domains is not None else {}
        train = self._dataset(table.features, target, chosen, named | whose)
        test = self._dataset(features, values, taken, named) if taken.numel() else None
        rows = f"{len(train)} + {taken.numel()} rows" if test else f"{len(train)} rows"
        shown = path if isinstance(path, Path) else f"{len(path)} paths"
        self.origin = f"{shown} ({rows}, {len(table.names)} features, {len(clients) or 'no'} clients)"
        return train, test

    def _check_paths(self, path: Path | dict[str, Path], held: Path | None) -> None:
        if isinstance(path, dict):
            require(bool(path), "data.datamodule.path", "a file, a folder, or a file for each client", path)
        several = isinstance(path, dict) or path.is_dir()
        if several and self.client_column is not None:
            what = (
                "has a file for each client" if isinstance(path, dict) else f"is the folder '{path}', in which each file is one"
            )
            raise DataError(
                f"'data.datamodule.client_column' names the clients of one file, but 'path' {what}. Set 'client_column' to "
                "null, or 'path' to a file."
            )
        if held is not None:
            for one in path.values() if isinstance(path, dict) else [path]:
                self._check_apart(one, held)

    @staticmethod
    def _check_apart(path: Path, held: Path) -> None:
        for inner, outer, what in ((held, path, "trained on"), (path, held, "tested on")):
            if outer.resolve() in (inner.resolve(), *inner.resolve().parents):
                raise DataError(
                    f"'{inner}' is inside '{outer}', so its rows would be {what}, too. Set 'data.datamodule.path' to the "
                    "training rows alone, and 'test_path' to the others."
                )

    def _targets(self, table: Table, classes: tuple[str, ...] = ()) -> tuple[Tensor | None, tuple[str, ...]]:
        """Return targets as a tensor, and the names of their classes, given or found; without classes, an empty tuple."""
        if table.target is None:
            return None, ()
        if self.kind == "regression":
            return torch.from_numpy(table.target).float(), ()
        names = np.array([_class_name(cell) for cell in table.target])
        known = classes or tuple(sorted(set(names.tolist()), key=_class_order(names)))
        if len(known) < 2:
            raise DataError(
                f"The column '{self.target}' of '{self.path}' has the single class '{known[0]}', but classification needs two "
                "or more. Set 'data.datamodule.target' to another column."
            )
        alike = [name for name in known if sum(other.casefold() == name.casefold() for other in known) > 1]
        if alike and not classes:
            rank_zero_warn(
                f"The column '{self.target}' has the classes {', '.join(map(repr, alike))}, which differ only in capital "
                "letters. If they are the same, write them alike in all files."
            )
        codes = {name: code for code, name in enumerate(known)}
        for name, place in zip(names.tolist(), table.places, strict=True):
            if name not in codes:
                raise DataError(
                    f"{place}: the column '{self.target}' has the class '{name}', which does not occur in the training data. "
                    "Remove the row from 'data.datamodule.test_path', or add examples of the class to 'path'."
                )
        return torch.tensor([codes[name] for name in names.tolist()]), known

    def _divided(self, domains: Tensor | None, classes: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
        """Return the training rows, and those of the server's set."""
        if not self.test_share:
            return torch.arange(rows), torch.zeros(0, dtype=torch.int64)
        owners = torch.zeros(rows, dtype=torch.int64) if domains is None else domains
        everyone = Partition.of_owners(owners, int(owners.max()) + 1)
        sizes = torch.minimum((self.test_share * everyone.sizes.double()).round().long(), everyone.sizes - 1)
        if not int(sizes.sum()):  # then the largest client gives one
            largest = everyone.sizes.argmax()
            sizes[largest] = (everyone.sizes[largest] - 1).clamp(max=1)
        if not int(sizes.sum()):
            raise DataError(
                f"'data.datamodule.test_share' is {self.test_share}, but it selects no rows, because no client has more than "
                "one. Set it to 0, or set 'test_path'."
            )
        rest, taken = hold_out(everyone, sizes, classes, generator(self.seed, "test share"))
        return rest.order.sort().values, taken.order.sort().values

    def _measure(self, features: np.ndarray[Any, Any]) -> None:
        self.mean = torch.from_numpy(features.mean(axis=0))
        std = features.std(axis=0)
        constant = (features.max(axis=0) == features.min(axis=0)) | (std == 0)  # mainly the first: std may be a rounding error
        self.std = torch.from_numpy(np.where(constant, 1.0, std))

    def _dataset(
        self, features: np.ndarray[Any, Any], target: Tensor | None, chosen: Tensor, named: dict[str, Any]
    ) -> TensorDataset:
        inputs = torch.from_numpy(features)[chosen]
        if self.standardize:
            inputs = (inputs - self.mean) / self.std
        return named_dataset([inputs.float()] + ([] if target is None else [target[chosen]]), **named)


def _coded(clients: np.ndarray[Any, Any] | None) -> tuple[Tensor | None, tuple[str, ...]]:
    if clients is None:
        return None, ()
    names, codes = np.unique(clients, return_inverse=True)
    return torch.from_numpy(codes), tuple(names.tolist())


def _class_name(cell: str) -> str:
    """Return a class as written, except that 1, 1.0 and 01 are one class."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    if not math.isfinite(value):
        return cell
    return str(int(value)) if value.is_integer() else repr(value)


def _class_order(names: np.ndarray[Any, Any]) -> Any:
    """Return the sort key: by value if all are numbers, otherwise as text."""
    try:
        return float if np.isfinite(names.astype(np.float64)).all() else str
    except ValueError:
        return str
