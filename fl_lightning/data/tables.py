"""Load your own tables from CSV or Parquet files: one file, or one for each client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.class_names import alike, class_name, given_classes, ordered_classes
from fl_lightning.data.client_paths import client_paths
from fl_lightning.data.in_memory import InMemoryDataModule, named_dataset
from fl_lightning.data.schema import Schema
from fl_lightning.data.schema_cells import exports_of
from fl_lightning.data.schema_file import read_schema
from fl_lightning.data.table_checks import compare_files, ranges_of, sentinels, unlike_ranges
from fl_lightning.data.table_file import listed
from fl_lightning.data.table_rows import Columns, Table, read_table
from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import count_units, hold_out
from fl_lightning.models.standardized import standardized_parts

_PATH = "data.datamodule."
_COMPARED = 100
"""The number of clients whose features' ranges are compared."""
_SHOWN = 5
"""The number of warnings about odd values."""


def _of_schema(schema: Schema, target: str | None, kind: str, classes: Any, others: dict[str, str | None]) -> tuple[Any, Any]:
    """Return the target and its kind, which are those of the schema.

    Raises:
        ConfigurationError: if a setting says something else, or names a field as a column of clients or persons.
    """
    found = "classification" if schema.classes else "regression"
    said = {"target": (target, "target", schema.target), "kind": (kind, "regression", found)}
    for setting, (value, default, own) in said.items():
        if value not in (default, own):
            what = f"'{_PATH}{setting}' is {value!r}, but the schema says {own!r}."
            raise ConfigurationError(f"{what} Remove '{setting}', or change the schema of all.")
    require(classes is None, f"{_PATH}classes", "left out with a 'schema', which has them", classes)
    for setting, column in others.items():
        other = column not in [field.name for field in schema.fields]
        require(other, _PATH + setting, "a column that is not a field of the schema", column)
    return schema.target, found


def _check_paths(path: Path | Mapping[str, Path], held: Path | None, client_column: str | None) -> None:
    """Refuse a column of clients beside files that name them, and files that are trained and tested on."""
    paths, several = [path] if isinstance(path, Path) else [*path.values()], not isinstance(path, Path)
    require(bool(paths), f"{_PATH}path", "a file, a folder, or a file for each client", path)
    if client_column is not None and (several or paths[0].is_dir()):
        what = "has a file for each client" if several else f"is the folder '{path}', in which each file is one"
        raise DataError(
            f"'{_PATH}client_column' names the clients of one file, but 'path' {what}. Set 'client_column' to null, or 'path' "
            "to a file."
        )
    pairs = [] if held is None else [pair for one in paths for pair in ((held, one, "trained"), (one, held, "tested"))]
    for inner, outer, what in pairs:
        if outer.resolve() in (inner.resolve(), *inner.resolve().parents):
            raise DataError(
                f"'{inner}' is inside '{outer}', so its rows would be {what} on, too. Set '{_PATH}path' to the training rows "
                "alone, and 'test_path' to the others."
            )


class TableDataModule(InMemoryDataModule):
    """Load rows of CSV or Parquet files: features, float32, shape (n, d), and a target, shape (n,), if one is named.

    All features are numbers, unless a ``schema`` describes them. Needs ``pip install 'fl_lightning[tables]'``.

    :class:`~fl_lightning.DomainPartitioner` creates one client for each file, or for each value of ``client_column``, sorted
    by name; :class:`~fl_lightning.IIDPartitioner` mixes the rows.

    Args:
        path: a CSV file with a header, or a Parquet file; a folder with one file for each client, which names the client; or a
            file (or folder) for each client by name. Columns are matched by name: files must have the same columns, in any
            order. None at a server whose clients are sites of their own; it then needs ``test_path``.
        target: the column to predict; None for features alone, as K-means uses.
        test_path: the server's set in a separate file or folder, with the same features and target.
        test_share: the share of the rows, in [0, 1), drawn as the server's set if ``test_path`` is not given: from each
            client's rows (and each of its classes), leaving every client at least one. With 0, no set is held out: see
            ``server_set`` of the FederatedDataModule.
        client_column: the column of a single file that names the client of a row; it is not a feature.
        person_column: the column that names the person of a row; it is not a feature. If persons have several rows, all rows of
            one are in the same part (training, validation, test, server's set), and differential privacy covers persons.
        kind: the kind of the target: a number, float32, for ``regression``; a class, int64, coded 0 .. C - 1 for
            ``classification``.
        classes: the names of the classes in the order of their codes, of which a file may lack some; None for those that
            occur, in sorted order (by value if all are numbers).
        standardize: whether to subtract the mean of each feature and divide by its standard deviation, both of the training
            part of all clients together. A constant feature is only centred, and the target stays unchanged.
        batch_size: the rows per training batch, B.
        eval_batch_size: the rows per evaluation batch.
        seed: the seed of the draw of a test share.
        schema: the YAML or JSON file that says what the columns mean: categories, dates, ranges, missing values, the target and
            its classes. The features of all files then have its names and its order, and further columns are ignored.
        columns: the column of a file that holds a field of the schema, and how its cells are converted, by the field's name:
            ``{age: {from: alter, scale: 0.1, offset: 0}, sex: {from: geschlecht, values: {m: male, w: female}}}``, also with
            ``format`` of dates, such as ``%d.%m.%Y``, and ``missing``, a list of cells without a value.
        csv: the form of CSV files, of which nothing is guessed: ``{separator: ";", decimal: ",", encoding: cp1252}``, also with
            ``quote`` and ``missing``, a list of cells without a value. By default commas, points and UTF-8.
        exports: ``columns`` and ``csv`` of single clients, by the client's name: ``{hospital_a: {csv: {encoding: cp1252}}}``;
            they replace those of all files.

    Attributes:
        schema: the schema; None if all features are numbers.
        feature_names: the names of the features, after ``setup``; the data sets have them, too.
        mean: the mean of the training part before standardising, float64, shape (d,), after ``setup``.
        std: its standard deviation (of the population), float64, shape (d,); 1 for a constant feature.
    """

    on_resume = ResumeRule(free="path test_path columns csv exports")

    def __init__(
        self,
        path: str | dict[str, str] | None = None,
        target: str | None = "target",
        test_path: str | None = None,
        test_share: float = 0.2,
        client_column: str | None = None,
        kind: Literal["regression", "classification"] = "regression",
        standardize: bool = True,
        batch_size: int = 32,
        eval_batch_size: int = 1000,
        seed: int = 0,
        classes: list[str | int] | None = None,
        person_column: str | None = None,
        schema: str | None = None,
        columns: dict[str, dict[str, Any]] | None = None,
        csv: dict[str, Any] | None = None,
        exports: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        self.schema = None if schema is None else read_schema(schema)
        self._exports = exports_of(self.schema, csv, columns, exports)
        if self.schema is not None:
            require(bool(self.schema.feature_names), f"{_PATH}schema", "the file of a schema with features", schema)
            others = {"client_column": client_column, "person_column": person_column}
            target, kind = _of_schema(self.schema, target, kind, classes, others)
        if path is None and test_path is None:
            raise ConfigurationError(
                f"'{_PATH}path' is missing. Set it to your table; a server whose clients are sites of their own needs only "
                f"'{_PATH}test_path'."
            )
        is_named = kind == "classification"
        require(0 <= test_share < 1, f"{_PATH}test_share", "at least 0 and below 1", test_share)
        require(is_named or kind == "regression", f"{_PATH}kind", "regression or classification", kind)
        require(target is not None or not is_named, f"{_PATH}kind", "left out without a 'target'", kind)
        require(classes is None or is_named, f"{_PATH}classes", "null without 'kind: classification'", classes)
        other = client_column is None or client_column != target
        require(other, f"{_PATH}client_column", "a column other than 'target'", client_column)
        apart = person_column is None or person_column not in (target, client_column)
        require(apart, f"{_PATH}person_column", "a column other than 'target' and 'client_column'", person_column)
        described = () if self.schema is None else self.schema.features
        self._gaps = [one.name for one in described if one.missing in ("mean", "most_frequent")]
        if self._gaps and standardize:
            raise ConfigurationError(
                f"'{_PATH}standardize' is true, but the schema leaves missing values of '{self._gaps[0]}' to the model, which "
                "fills them in. Set 'standardize' to false, and let the model scale, too: Standardized."
            )
        self.path, self.test_path, self.test_share = path, test_path, test_share
        self._paths = None if path is None else client_paths(f"{_PATH}path", path)
        self.target, self.client_column, self.kind = target, client_column, kind
        self.classes, self.person_column = given_classes(classes), person_column
        self.standardize = standardize
        self.seed = seed
        self.feature_names: tuple[str, ...] = ()
        self.mean, self.std = torch.zeros(0), torch.zeros(0)
        if not test_share and test_path is None:
            self.without_server_set()

    def setup(self, stage: str) -> None:
        """Read the tables once, after refusing a model that cannot fill in missing numbers.

        Raises:
            ConfigurationError: if the schema leaves missing numbers to the model, which has no Standardized.
        """
        if self._gaps and self.trainer is not None and not standardized_parts(self.trainer.lightning_module):
            raise ConfigurationError(
                f"Missing values of '{self._gaps[0]}' become the mean or the most frequent category over all clients, which "
                "Standardized fills in, but the model has no such part. Put it around the network, or choose another 'missing' "
                "in the schema of all."
            )
        super().setup(stage)

    def load(self) -> tuple[TensorDataset | None, TensorDataset | None]:
        """Read the files, divide and standardise.

        Raises:
            DataError: if a file is invalid; the message names file, line and column.
        """
        held = None if self.test_path is None else Path(self.test_path)
        text = self.kind == "classification"
        columns = Columns(self.target, self.client_column, text, self.person_column, self.schema, self._exports)
        table = None
        if self._paths is not None:
            _check_paths(self._paths, held, self.client_column)
            table = read_table(self._paths, columns, f"{_PATH}path")
            self._warn_of_odd_values(table)
        other = None if held is None else read_table(held, columns, f"{_PATH}test_path", table)
        read = table or other
        assert read is not None
        self.feature_names = read.names
        target, classes = self._targets(read, self.classes)
        named: dict[str, Any] = {"feature_names": read.names} | ({"classes": classes} if classes else {})
        if table is None:
            require(not self.standardize, f"{_PATH}standardize", "false without training rows", self.standardize)
            self.origin = f"{self.test_path} ({len(read.features)} rows, {len(read.names)} features)"
            return None, self._dataset(read.features, target, torch.arange(len(read.features)), named)
        domains, clients = coded(table.clients)
        persons, _ = coded(table.persons)
        if other is not None:
            chosen, taken = torch.arange(len(table.features)), torch.arange(len(other.features))
            features, values = other.features, self._targets(other, classes)[0]
        else:
            chosen, taken = self._divided(domains, persons, target if classes else None, len(table.features))
            features, values = table.features, target
        self._measure(table.features[chosen.numpy()])
        whose = {"domains": domains[chosen], "domains_names": clients} if domains is not None else {}
        whose |= {"persons": table.persons[chosen.numpy()]} if table.persons is not None else {}
        train = self._dataset(table.features, target, chosen, named | whose)
        test = self._dataset(features, values, taken, named) if taken.numel() else None
        rows = f"{len(train)} + {taken.numel()} rows" if test else f"{len(train)} rows"
        shown = self._paths if isinstance(self._paths, Path) else f"{len(self._paths or ())} paths"
        self.origin = f"{shown} ({rows}, {len(table.names)} features, {len(clients) or 'no'} clients)"
        return train, test

    def compare_with_schema(self) -> list[str]:
        """Return sentences about how the training files differ from the schema, for the eyes of those who own them.

        Raises:
            DataError: if a file cannot be read at all.
        """
        if self.schema is None or self._paths is None:
            return []
        return compare_files(self._paths, self.schema, self._exports, (self.client_column, self.person_column))

    @staticmethod
    def _warn_of_odd_values(table: Table) -> None:
        """Warn of numbers that seem to stand for missing values, and of clients whose features seem to have another unit."""
        found = sentinels(table.names, table.features)
        if table.clients is not None:
            names = np.unique(table.clients)[:_COMPARED].tolist()
            found += unlike_ranges(
                table.names, {f"client {name}": ranges_of(table.features[table.clients == name]) for name in names}
            )
        for text in found[:_SHOWN]:
            rank_zero_warn(text)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches of features, shape (B, d), and of targets, shape (B,), if any.

        Raises:
            DataError: if there are no training rows here.
        """
        if self._train is None:
            raise DataError("'data.datamodule.path' is null, so there are no rows to train on. Set it to a table.")
        return super().train_dataloader()

    def _targets(self, table: Table, classes: tuple[str, ...] = ()) -> tuple[Tensor | None, tuple[str, ...]]:
        """Return targets as a tensor, and the names of their classes, given or found; without classes, an empty tuple."""
        if table.target is None:
            return None, ()
        if self.kind == "regression":
            return torch.from_numpy(table.target).float(), ()
        if self.schema is not None:
            return torch.from_numpy(table.target), self.schema.classes
        names = [class_name(cell) for cell in table.target]
        known = classes or ordered_classes(names)
        if len(known) < 2:
            raise DataError(
                f"The column '{self.target}' of '{self.path or self.test_path}' has the single class '{known[0]}', but "
                "classification needs two or more. Name all classes in 'data.datamodule.classes', or set "
                "'data.datamodule.target' to another column."
            )
        if (odd := alike(known)) and not classes:
            rank_zero_warn(
                f"The column '{self.target}' has the classes {', '.join(map(repr, odd))}, which differ only in capital letters "
                "or in how a number is written. If they are the same, write them alike in all files."
            )
        codes = {name: code for code, name in enumerate(known)}
        for row, name in enumerate(names):
            if name not in codes:
                what = f"the column '{self.target}' has the class '{name}', but the classes are {listed(known)}."
                fix = f"Correct the cell, or name all classes in '{_PATH}classes'."
                raise DataError(f"{table.place(row)}: {what} {fix}")
        return torch.tensor([codes[name] for name in names]), known

    def _divided(
        self, domains: Tensor | None, persons: Tensor | None, classes: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Return the training rows, and those of the server's set."""
        if not self.test_share:
            return torch.arange(rows), torch.zeros(0, dtype=torch.int64)
        owners = torch.zeros(rows, dtype=torch.int64) if domains is None else domains
        everyone = Partition.of_owners(owners, int(owners.max()) + 1)
        units = count_units(everyone, persons)
        sizes = torch.minimum((self.test_share * units.double()).round().long(), units - 1)
        if not int(sizes.sum()):  # then the largest client gives one
            largest = units.argmax()
            sizes[largest] = (units[largest] - 1).clamp(max=1)
        if not int(sizes.sum()):
            what = "rows" if persons is None else "persons"
            raise DataError(
                f"'data.datamodule.test_share' is {self.test_share}, but it selects no {what}, because no client has more than "
                "one. Set it to 0, or set 'test_path'."
            )
        rest, taken = hold_out(everyone, sizes, classes, generator(self.seed, "test share"), persons)
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


def coded(names: np.ndarray[Any, Any] | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of each row's name among the sorted ones, int64, shape (n,), and the names; None without names."""
    if names is None:
        return None, ()
    known, codes = np.unique(names, return_inverse=True)
    return torch.from_numpy(codes), tuple(known.tolist())
