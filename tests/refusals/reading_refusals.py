"""Clients that are read when they are drawn, their files, and loaders of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from client_files import set_up, write_arrays, write_hdf5, write_parquet
from client_sites import Stream, fitted, shares
from federations import blobs
from lazy_stores import Store, fit, lazily
from pyarrow import parquet
from refusing import Refusal
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    ArrayClients,
    Attackers,
    DataError,
    FederatedDataModule,
    FedLoss,
    FedSGD,
    HDF5Clients,
    IIDPartitioner,
    LabelAveraging,
    LazyClients,
    LocalTraining,
    ParquetClients,
)
from fl_lightning.errors import VersionError

from_clients = FederatedDataModule.from_clients


class Nobody(LazyClients):
    def num_examples(self) -> list[int]:
        return []


def told(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, DataError)


def setting_up(data: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: data().setup("fit")


def sized(sizes: Any, **settings: Any) -> Callable[[], Any]:
    return setting_up(lambda: lazily(Store(), sizes, **settings))


def opening(found: Any) -> Callable[[], Any]:
    return lambda: fit(lazily(lambda client: found))


def asking(question: Callable[[Any], Any]) -> Callable[[], Any]:
    def call() -> None:
        data = lazily(Store())
        data.setup("fit")
        question(data)

    return call


LAZY = [
    Refusal(lambda: from_clients(Store(), num_examples=3), "'num_clients' is missing"),
    Refusal(lambda: from_clients(Store(), num_clients=0, num_examples=1), "'num_clients' must be a whole number"),
    Refusal(lambda: from_clients({"a": 1}, num_clients=1), "'num_clients' must be left out if clients are given"),
    Refusal(lambda: from_clients(Store(), num_clients=4), "'num_examples' is missing ... from_clients"),
    Refusal(sized([1, 2]), "'num_examples' must be one number for each of 4 clients, but is 2"),
    told(sized([1, 2, 0, 4]), "'num_examples' has 0 for client 2. Give each client"),
    told(sized(0), "has 0 for client 0"),
    Refusal(sized(0.5), "'num_examples' must be a whole number or a list of whole numbers ... but is 0.5"),
    told(setting_up(lambda: FederatedDataModule(Nobody())), "'num_examples' has no numbers"),
    Refusal(sized([1, 2, 0.5, 4]), "'num_examples' must be ... a list of whole numbers ... but is [1, 2, 0.5, 4]"),
    Refusal(sized("abcd"), "'num_examples' must be ... a list of whole numbers ... but is 'abcd'"),
    told(setting_up(lambda: FederatedDataModule(LazyClients())), "whole number for each client, but is None"),
    Refusal(sized(3, num_workers=2), "'num_workers' must be 0 if clients are opened by a function, but is 2"),
    Refusal(sized(3, val={"0": 1}), "'val' must be the server's dataset or DataLoader ... but is 'dict'"),
    Refusal(sized(3, client_test=0.2), "'data.client_test' must be off if clients read when they"),
    Refusal(sized(3, public_share=0.2), "'data.public_share' must be 0"),
    Refusal(sized(3, rebalancing=LabelAveraging()), "'data.rebalancing' must be off"),
    Refusal(lambda: FederatedDataModule(Nobody(), IIDPartitioner(2)), "'data.partitioner' must be null with LazyClients"),
    Refusal(lambda: Nobody(batch_size=0), "'data.datamodule.batch_size' must be 1 or above, but is 0"),
    told(lambda: fit(lazily(Store(), 6)), "Client ... has ... examples, but its 'num_examples' is 6. Make both agree"),
    told(opening(3), "was opened as a int, but must be a dataset ... Return the dataset"),
    told(opening(DataLoader(TensorDataset(*blobs(3, 0)))), "was opened as a DataLoader, but must be a dataset"),
    Refusal(asking(lambda data: data.label_counts()), "are read when the clients are drawn, so ... give the clients' datasets"),
    Refusal(asking(lambda data: data.client_evaluation_view(0, "test")), "are read when the clients are drawn, so"),
    Refusal(lambda: fit(lazily(Store()), federation={"strategy": FedLoss()}), "validation"),
]


def file(kind: Any, content: bytes | None, **settings: Any) -> Callable[[], Any]:
    def call() -> None:
        if content is not None:
            Path("a.file").write_bytes(content)
        set_up(kind, "a.file", **settings)

    return call


def in_parquet(columns: dict[str, Any] | None = None, fields: Any = ("x", "y"), **settings: Any) -> Callable[[], Any]:
    """Return a call that reads all of the usual clients, or of one with these columns."""

    def call() -> None:
        path = Path("a.parquet")
        if columns is None:
            write_parquet(path, **{name: settings.pop(name) for name in ("clients", "names") if name in settings})
        else:
            parquet.write_table(pa.table({"client": [1, 1], **columns}), path)
        set_up(ParquetClients, path, list(fields), **settings).open(0)

    return call


def in_mixed_parquet() -> None:
    Path("mixed").mkdir()
    for name, column in (("a", [1]), ("b", ["one"])):
        parquet.write_table(pa.table({"client": column, "x": [1.0]}), f"mixed/{name}.parquet")
    set_up(ParquetClients, "mixed", ["x"])


def in_hdf5(content: dict[str, Any], fields: Any = ("x", "y"), client: int = 0, **settings: Any) -> Callable[[], Any]:
    def call() -> None:
        with h5py.File("a.h5", "w") as written:
            for name, values in content.items():
                written.create_group(name) if values is None else written.create_dataset(name, data=values)
        set_up(HDF5Clients, "a.h5", list(fields), **settings).open(client)

    return call


def in_arrays(replaced: dict[str, Any] | None = None, fields: Any = ("x", "y"), **settings: Any) -> Callable[[], Any]:
    def call() -> None:
        write_arrays(Path.cwd())
        for name, values in (replaced or {}).items():
            np.save(f"{name}.npy", values)
        set_up(ArrayClients, ".", list(fields), **settings).open(0)

    return call


def no_array() -> None:
    write_arrays(Path.cwd())
    Path("ends.npy").write_bytes(b"text")
    set_up(ArrayClients, ".")


def without(package: str, kind: Any) -> Callable[[], Any]:
    def call() -> None:
        with pytest.MonkeyPatch.context() as patched:
            for name in (package, "pyarrow.compute"):
                patched.setitem(sys.modules, name, None)
            set_up(kind, "x")

    return call


FILES = [
    *(
        told(file(kind, content), f"Cannot read 'a.file' as {name} ( ... ). Correct 'data.datamodule.path'")
        for kind, name in ((ParquetClients, "a Parquet file"), (HDF5Clients, "an HDF5 file"))
        for content in (None, b"neither")
    ),
    told(in_parquet(client_column="clint"), "has no column 'clint'. Did you mean client? It has client, x ... client_column'"),
    told(in_parquet(fields=["x", "z"]), "has no column 'z' ... It has client, x, y. Correct 'data.datamodule.fields'"),
    told(in_arrays(fields=["z"]), "has no array 'z' ... It has x, y. Correct 'data.datamodule.fields'"),
    told(lambda: set_up(HDF5Clients, write_hdf5(Path("a.h5")), ["z"]), "has no field 'z' ... It ... 'data.datamodule.fields'"),
    told(in_parquet(names=["a", "b", "a", "c"]), "rows of client 'a' do not lie together. ... the rows by the column 'client'"),
    told(in_parquet(names=["a", None, "b", "c"]), "rows have no 'client'. Fill the column"),
    told(lambda: set_up(ParquetClients, "."), "has no files '*.parquet'"),
    told(in_parquet(clients=[(np.zeros((0, 2)), np.zeros(0, int))]), "has no clients. Add at least one"),
    told(in_parquet({"tokens": [[1, 2, 3], [1]]}, ["tokens"]), "'tokens' has lists of different lengths, 3 and 1. Pad them"),
    told(in_parquet({"age": [3, None]}, ["age"]), "the column 'age' has missing values. Fill them"),
    told(in_mixed_parquet, "as Parquet files with columns of the same types"),
    told(in_hdf5({"writers": [1]}), "has no group 'examples', but writers. Write a group for each client"),
    told(in_hdf5({"examples": None}), "has no clients"),
    told(in_hdf5({"examples/a/x": np.zeros((3, 2)), "examples/a/y": [1]}), "the fields of client 'a' ... have one value for"),
    told(in_hdf5({"examples/a/x": [1], "examples/b/z": [1]}, ["x"], 1), "has no field of client 'b' 'x'. It has z"),
    told(
        in_hdf5({"examples/a/x": np.zeros((1, 2)), "examples/b/x": np.zeros((1, 3))}, ["x"], test_path="a.h5"),
        "the examples of 'x' have the shapes [2] and [3]",
    ),
    told(lambda: set_up(ArrayClients, "."), "has no file 'ends.npy', nor subfolders with one ... np.save('ends.npy'"),
    told(in_arrays({"y": np.zeros(5)}), "y.npy' has 5 rows, but 'ends.npy' ends at 33. Write both again"),
    told(in_arrays({"ends": np.zeros((2, 2))}), "ends.npy' must hold a whole number for each client, but has float64 of shape"),
    told(no_array, "Cannot read ' ... ends.npy' as an array of numpy"),
    told(in_arrays(shapes={"x": [1, 5]}), "'x' have the shape [4], which cannot become [1, 5]. Correct"),
    *(
        Refusal(lambda wrong=wrong: ArrayClients("data", **{"fields": ["x"], **wrong}), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"fields": []}, "fields' must be a list of different names, at least one, but is []"),
            ({"fields": ["x", "x"]}, "fields' must be a list of different names"),
            ({"shapes": {"z": [1]}}, "shapes' must be for fields among x, but is 'z'"),
            ({"scales": {"z": 1.0}}, "scales' must be for fields among x, but is 'z'"),
            ({"test_clients": 0}, "test_clients' must be 1 or above, or null, but is 0"),
            ({"eval_batch_size": 0}, "eval_batch_size' must be 1 or above, but is 0"),
        )
    ),
    Refusal(lambda: ArrayClients("data", "x"), "'fields' must be a list of texts, but is 'x' (a str). Put it in a list."),
    Refusal(without("h5py", HDF5Clients), "read with h5py ... pip install 'fl_lightning[hdf5]'", VersionError),
    Refusal(without("pyarrow", ParquetClients), "read with pyarrow ... pip install 'fl_lightning[tables]'", VersionError),
]


def streaming(data: Any = None, **settings: Any) -> Callable[[], Any]:
    streams = {name: Stream(own) for name, own in shares(1, (7, 20)).items()}
    return lambda: fitted(from_clients(streams, **{"batch_size": 5, **(data or {})}), **settings)


def labels_of_streams() -> None:
    data = from_clients({"a": Stream(TensorDataset(*blobs(7, 1)))})
    data.setup("fit")
    data.label_counts()


STREAMS = [
    Refusal(streaming({"client_test": 0.2}), "'data.client_test' must be off if clients read with loaders of their own"),
    Refusal(streaming({"rebalancing": LabelAveraging()}), "'data.rebalancing' must be off"),
    Refusal(
        streaming(strategy=FedSGD(), local=LocalTraining(full_batch=True)), "'federation.local.full_batch' cannot ... Leave"
    ),
    Refusal(streaming(attackers=Attackers({0: 0.5})), "so 'federation.attackers' cannot change them. Leave out"),
    *(
        Refusal(streaming(local=LocalTraining(engine=engine)), f"but the engine '{engine}' needs it")
        for engine in ("fabric", "stacked")
    ),
    Refusal(
        lambda: fitted(from_clients({"a": Stream(TensorDataset(torch.zeros(0, 4), torch.zeros(0)))})),
        "The stream of client a has no examples",
        DataError,
    ),
    Refusal(labels_of_streams, "reads with a loader of its own ... so their labels are not known beforehand. Leave out"),
]
REFUSALS = [*LAZY, *FILES, *STREAMS]
