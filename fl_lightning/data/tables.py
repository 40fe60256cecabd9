"""Load your own tables from CSV or Parquet files: one file, or one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.in_memory import InMemoryDataModule, client_paths, named_dataset
from fl_lightning.data.labels import alike, class_name, given_classes, listed, ordered_classes
from fl_lightning.data.schema import Field, Schema, repeated
from fl_lightning.data.schema_file import read_schema
from fl_lightning.data.table_checks import ranges_of, sentinels, unlike_ranges
from fl_lightning.data.table_export import COLUMNS, export_of
from fl_lightning.data.table_file import SourceTable, read_source
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
_ENDINGS = (".csv", ".tsv", ".parquet")
_Files = Sequence[tuple[str | None, Path]]
"""Each file with its client; None for a single file."""


@dataclass(frozen=True)
class _Table:
    """Hold the rows of one file, or of several one after another.

    Args:
        schema: what the columns mean.
        features: the features, finite in float32, float64, shape (n, d).
        target: the target, float64, shape (n,): a number, or the number of a class; None without one.
        clients: the name of each row's client, text, shape (n,), or None.
        persons: the name of each row's person, text, shape (n,), or None.
    """

    schema: Schema
    features: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any] | None
    clients: np.ndarray[Any, Any] | None
    persons: np.ndarray[Any, Any] | None


class TableDataModule(InMemoryDataModule):
    """Load rows of CSV or Parquet files: features, float32, shape (n, d), and a target, shape (n,), if one is named.

    All features are numbers, unless a ``schema`` describes them. Needs ``pip install 'fl_lightning[tables]'``.

    :class:`~fl_lightning.DomainPartitioner` creates one client for each file, or for each value of ``client_column``, sorted
    by name; :class:`~fl_lightning.IIDPartitioner` mixes the rows.

    Args:
        path: a CSV file with a header, or a Parquet file; a folder with one file for each client, which names the client; or a
            file (or folder) for each client by name. Columns are matched by name: files must have the same columns, in any
            order, and the same form; others are clients with a TableDataModule each (``data.clients``). None at a server whose
            clients are sites of their own; it then needs ``test_path``.
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

    Attributes:
        schema: the schema; None if all features are numbers.
        feature_names: the names of the features, after ``setup``; the data sets have them, too.
        mean: the mean of the training part before standardising, float64, shape (d,), after ``setup``.
        std: its standard deviation (of the population), float64, shape (d,); 1 for a constant feature.
    """

    renamed = MappingProxyType({"exports": "a TableDataModule for each client, in 'data.clients'"})
    on_resume = ResumeRule(free="path test_path columns csv")

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
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        self.schema = None if schema is None else read_schema(schema)
        self._export = export_of(self.schema, csv, columns)
        if self.schema is not None:
            found: Literal["regression", "classification"] = "classification" if self.schema.classes else "regression"
            own: dict[str, Any] = {"target": (target, "target", self.schema.target), "kind": (kind, "regression", found)}
            for setting, (value, usual, said) in (own | {"classes": (classes, None, [*self.schema.classes])}).items():
                require(value in (usual, said), _PATH + setting, f"left out, or {said!r} as in the schema", value)
            target, kind, classes = self.schema.target, found, None
        wanted = "your table, or null at a server whose clients are sites of their own, beside a 'test_path'"
        require(bool(path) or test_path is not None, f"{_PATH}path", wanted, path)
        is_named = kind == "classification"
        require(0 <= test_share < 1, f"{_PATH}test_share", "at least 0 and below 1", test_share)
        require(target is not None or not is_named, f"{_PATH}kind", "left out without a 'target'", kind)
        require(classes is None or is_named, f"{_PATH}classes", "null without 'kind: classification'", classes)
        require(bool(path) or not standardize, f"{_PATH}standardize", "false without training rows", standardize)
        fields = () if self.schema is None else self.schema.fields
        taken = [target, *(one.name for one in fields)]
        for setting, column in (("client_column", client_column), ("person_column", person_column)):
            is_free = column is None or column not in taken
            require(is_free, _PATH + setting, "a column that is no target, field of the schema or client", column)
            taken.append(column)
        self._gaps = [one.name for one in fields if one.missing in ("mean", "most_frequent")]
        wanted = "false with a schema that leaves missing values to the model, whose Standardized scales, too"
        require(not (self._gaps and standardize), f"{_PATH}standardize", wanted, standardize)
        self.path, self.test_path, self.test_share = path, test_path, test_share
        self._paths = client_paths(f"{_PATH}path", path) if path else None
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
        files = [] if self._paths is None else _table_files(self._paths, f"{_PATH}path")
        tests = [] if self.test_path is None else _table_files(Path(self.test_path), f"{_PATH}test_path")
        both = {file.resolve() for _, file in tests} & {file.resolve() for _, file in files}
        require(not both, f"{_PATH}test_path", "files that are not in 'path', whose rows are trained on", self.test_path)
        table = self._read(files) if files else None
        other = self._read(tests, table) if tests else None
        read = table or other
        assert read is not None
        self.feature_names = read.schema.feature_names
        named: dict[str, Any] = {"feature_names": self.feature_names}
        named |= {"classes": read.schema.classes} if self.kind == "classification" else {}
        if table is None:
            rows = torch.arange(len(read.features))
            self.origin = f"{self.test_path} ({len(rows)} rows, {len(self.feature_names)} features)"
            return None, self._dataset(read, rows, named)
        self._warn_of_odd_values(table)
        domains, clients = _coded(table.clients)
        chosen, taken = torch.arange(len(table.features)), torch.arange(len(other.features) if other else 0)
        if other is None and self.test_share:
            chosen, taken = self._divided(table, domains)
        self._measure(table.features[chosen.numpy()])
        whose = {"domains": domains[chosen], "domains_names": clients} if domains is not None else {}
        whose |= {"persons": table.persons[chosen.numpy()]} if table.persons is not None else {}
        sizes = f"{len(chosen)} + {len(taken)} rows" if len(taken) else f"{len(chosen)} rows"
        shown = self._paths if isinstance(self._paths, Path) else f"{len(self._paths or ())} paths"
        self.origin = f"{shown} ({sizes}, {len(self.feature_names)} features, {len(clients) or 'no'} clients)"
        test = self._dataset(other or table, taken, named) if len(taken) else None
        return self._dataset(table, chosen, named | whose), test

    def _read(self, files: _Files, like: _Table | None = None) -> _Table:
        """Read files, whose columns are matched by name, in any order.

        Args:
            files: the files.
            like: the training rows, whose features these must have; columns of clients and persons may then be missing.

        Raises:
            DataError: if a file is invalid; the message names file, line and column.
        """
        owners = [name for name, _ in files if name is not None]
        roles = {"client_column": self.client_column, "person_column": self.person_column}
        if like is None:
            is_one = self.client_column is None or not owners
            require(is_one, f"{_PATH}client_column", "null with a file for each client in 'path'", self.client_column)
        sources = [read_source(file, self._export) for _, file in files]
        wanted = ({} if like else roles) | ({} if self.schema else {"target": self.target})
        for source, (setting, name) in product(sources, wanted.items()):
            if name is not None and name not in source.columns:
                what = f"'{source.path}' has no column '{name}'. {source.in_words}"
                raise DataError(f"{what} Set '{_PATH}{setting}' to one of them or to null, or add the column.")
        schema = self.schema or (like.schema if like else self._plain_schema(sources))
        sources, further = [replace(source, schema=schema) for source in sources], []
        for source in sources:
            if missing := source.missing_columns():
                raise DataError(
                    f"'{source.path}' lacks columns: {listed(missing, ' ')} {source.in_words} Add the column, "
                    f"or, with a schema, name the one that holds it: '{COLUMNS}: {{FIELD: {{from: COLUMN}}}}'."
                )
            if names := source.further_columns([*roles.values()]):
                further.append(f"'{source.path}' has {listed(names)}")
        if further and self.schema is None and like is None:
            raise DataError(f"{listed(further, '; ')}, but '{sources[0].path}' does not. Give every file the same columns.")
        if further:
            rank_zero_warn(f"Further columns are ignored: {listed(further, '; ')}.")
        features = [np.concatenate([source.features(one) for one in schema.features], axis=1) for source in sources]
        aim, clients, person = schema.target_field, None, self.person_column
        target = None if aim is None else np.concatenate([source.values(aim) for source in sources])
        if owners:
            clients = np.concatenate([np.full(source.rows, name) for name, source in zip(owners, sources, strict=True)])
        elif self.client_column in sources[0].columns:
            clients = _texts_of(sources, str(self.client_column))
        persons = _texts_of(sources, str(person)) if all(person in source.columns for source in sources) else None
        return _Table(schema, np.concatenate(features), target, clients, persons)

    def _plain_schema(self, sources: Sequence[SourceTable]) -> Schema:
        """Return the schema of files whose features are numbers: those of the first file.

        Raises:
            DataError: if there are no features, or a single class.
        """
        first, target = sources[0], [] if self.target is None else [self.target]
        names = [name for name in first.columns if name not in (self.target, self.client_column, self.person_column)]
        if not names:
            raise DataError(f"'{first.path}' has no columns besides {listed([*first.columns])}. Add columns of features.")
        names += target if self.kind == "regression" else []
        flags = {name for name in names if all(name in one.columns and one.columns[name].type == "bool" for one in sources)}
        fields = [Field(name, "boolean" if name in flags else "number") for name in names]
        for name in target if self.kind == "classification" else []:
            cells = [class_name(cell) for source in sources for cell in source.text(name).unique().to_pylist()]
            known, where = self.classes or ordered_classes(cells), f"The column '{name}' of '{first.path}' has the"
            if len(known) < 2:
                raise DataError(
                    f"{where} single class '{known[0]}', but classification needs two or more. Name all classes in "
                    f"'{_PATH}classes', or set '{_PATH}target' to another column."
                )
            if not self.classes and (odd := alike(known)):
                rank_zero_warn(
                    f"{where} classes {', '.join(map(repr, odd))}, which differ only in capital letters or in how a number is "
                    "written. If they are the same, write them alike in all files."
                )
            fields.append(Field(name, "string", enum=known))
        return Schema(tuple(fields), self.target)

    def compare_with_schema(self) -> list[str]:
        """Return sentences about how the training files differ from the schema, for the eyes of those who own them.

        Raises:
            DataError: if a file cannot be read at all.
        """
        found: list[str] = []
        if self.schema is None or self._paths is None:
            return found
        for _, file in _table_files(self._paths, f"{_PATH}path"):
            source, export = read_source(file, self._export, self.schema), self._export
            further = source.further_columns((self.client_column, self.person_column))
            said = [f"has {source.rows} rows."]
            said += [f"lacks the column {text}" for text in source.missing_columns()]
            said += [f"has '{field}' in '{one.column}'." for field, one in export.columns.items() if one.column != field]
            said += [f"has further columns, which are ignored: {listed(further)}."] if further else []
            problems = []
            for field in self.schema.fields:
                if export.source(field.name).column in source.columns:
                    share = source.cells(field).null_count / source.rows
                    said += [f"lacks {100 * share:.2g} % of the values of '{field.name}'."] if share else []
                    problems += source.compared(field)[1]
            found += [*(f"'{file}' {text}" for text in said), *problems]
        return found

    @staticmethod
    def _warn_of_odd_values(table: _Table) -> None:
        """Warn of numbers that seem to stand for missing values, and of clients whose features seem to have another unit."""
        found = sentinels(table.schema.feature_names, table.features)
        if table.clients is not None:
            names = np.unique(table.clients)[:_COMPARED].tolist()
            ranges = {f"client {name}": ranges_of(table.features[table.clients == name]) for name in names}
            found += unlike_ranges(table.schema.feature_names, ranges)
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

    def _divided(self, table: _Table, domains: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the training rows, and those of the server's set."""
        rows, (persons, _) = len(table.features), _coded(table.persons)
        owners = torch.zeros(rows, dtype=torch.int64) if domains is None else domains
        everyone = Partition.of_owners(owners, int(owners.max()) + 1)
        units = count_units(everyone, persons)
        sizes = torch.minimum((self.test_share * units.double()).round().long(), units - 1)
        if not int(sizes.sum()):  # then the largest client gives one
            largest = units.argmax()
            sizes[largest] = (units[largest] - 1).clamp(max=1)
        wanted = "0 if no client has several rows (or persons), or give way to a 'test_path'"
        require(int(sizes.sum()) > 0, f"{_PATH}test_share", wanted, self.test_share)
        classes = torch.from_numpy(table.target).long() if self.kind == "classification" else None
        rest, taken = hold_out(everyone, sizes, classes, generator(self.seed, "test share"), persons)
        return rest.order.sort().values, taken.order.sort().values

    def _measure(self, features: np.ndarray[Any, Any]) -> None:
        self.mean = torch.from_numpy(features.mean(axis=0))
        std = features.std(axis=0)
        constant = (features.max(axis=0) == features.min(axis=0)) | (std == 0)  # mainly the first: std may be a rounding error
        self.std = torch.from_numpy(np.where(constant, 1.0, std))

    def _dataset(self, table: _Table, chosen: Tensor, named: dict[str, Any]) -> TensorDataset:
        tensors = [torch.from_numpy(table.features)[chosen]]
        if self.standardize:
            tensors = [(tensors[0] - self.mean) / self.std]
        if table.target is not None:
            target = torch.from_numpy(table.target)[chosen]
            tensors.append(target.long() if self.kind == "classification" else target.float())
        return named_dataset([tensors[0].float(), *tensors[1:]], **named)


def _coded(names: np.ndarray[Any, Any] | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of each row's name among the sorted ones, int64, shape (n,), and the names; None without names."""
    if names is None:
        return None, ()
    known, codes = np.unique(names, return_inverse=True)
    return torch.from_numpy(codes), tuple(known.tolist())


def _table_files(path: Path | Mapping[str, Path], setting: str) -> _Files:
    """Return each file with its client, sorted by name: the tables of a folder, or of each client; None for a single file.

    Raises:
        DataError: if no table exists, or if two files of a folder have the same name.
    """
    if isinstance(path, Mapping):
        return [(name, file) for name in sorted(path) for _, file in _table_files(path[name], setting)]
    if path.is_file():
        return [(None, path)]
    files = sorted(path.iterdir()) if path.is_dir() else []
    found = [file for file in files if file.suffix.lower() in _ENDINGS and file.name[0] != "." and file.is_file()]
    if not found:
        what = f"The folder '{path}' has no CSV or Parquet file" if path.is_dir() else f"'{path}' does not exist"
        raise DataError(f"{what}. Set '{setting}' to a CSV or Parquet file, or to a folder with one per client.")
    for twice in repeated(file.stem for file in found):
        raise DataError(f"The folder '{path}' has several tables named '{twice}'. Give every client one file.")
    return [(file.stem, file) for file in found]


def _texts_of(sources: Sequence[SourceTable], name: str) -> np.ndarray[Any, Any]:
    """Return a column of text, which must not have gaps.

    Raises:
        DataError: naming the first gap.
    """
    found = []
    for source in sources:
        cells = np.array(source.text(name).fill_null("").to_pylist())
        if "" in cells:
            raise DataError(source.problem(cells == "", name, "", "Fill it, or remove the row."))
        found.append(cells)
    return np.concatenate(found)
