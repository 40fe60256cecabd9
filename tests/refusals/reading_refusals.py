"""Clients that are read when they are drawn, their files, and loaders of their own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from client_files import set_up, write_hdf5
from client_sites import Stream, fitted, shares
from federations import blobs
from lazy_stores import Store, fit, lazily
from refusing import Refusal, later, made, told
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.errors import VersionError

from_clients = fl.FederatedDataModule.from_clients


Nobody = made("Nobody", fl.LazyClients, num_examples=lambda self: [])


def setting_up(data: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: data().setup("fit")


def sized(sizes: Any, **settings: Any) -> Callable[[], Any]:
    return setting_up(lambda: lazily(Store(), sizes, **settings))


def opening(found: Any) -> Callable[[], Any]:
    return lambda: fit(lazily(lambda client: found))


@later
def asking(question: Callable[[Any], Any]) -> None:
    data = lazily(Store())
    data.setup("fit")
    question(data)


LAZY = [
    Refusal(lambda: from_clients(Store()), "'data.clients' must be a dictionary ... when they are drawn, subclass LazyClients"),
    told(sized([1, 2, 0, 4]), "'num_examples' has 0 for client 2. Give each client"),
    told(sized(0), "'num_examples' is 0, which is not a list of whole numbers. Return one for each client"),
    told(setting_up(lambda: fl.FederatedDataModule(Nobody())), "'num_examples' has no numbers"),
    told(setting_up(lambda: fl.FederatedDataModule(fl.LazyClients())), "'num_examples' is None, which is not a list of whole"),
    Refusal(sized([3] * 4, client_test=0.2), "'data.client_test' must be off, but is 0.2. The clients' examples are read when"),
    Refusal(sized([3] * 4, rebalancing=fl.LabelAveraging()), "'data.rebalancing' must be off"),
    Refusal(lambda: fl.FederatedDataModule(Nobody(), fl.IIDPartitioner(2)), "'data.partitioner' must be null if the examples"),
    Refusal(lambda: Nobody(batch_size=0), "'data.datamodule.batch_size' must be 1 or above, but is 0"),
    told(lambda: fit(lazily(Store(), [6] * 4)), "Client ... has ... examples, but its 'num_examples', by which it is weighed,"),
    told(opening(DataLoader(TensorDataset(*blobs(3, 0)))), "are a DataLoader, but must be a dataset"),
    Refusal(asking(lambda data: data.label_counts()), "are read when the clients are drawn, so ... give the clients' datasets"),
    Refusal(asking(lambda data: data.client_evaluation_view(0, "test")), "are read when the clients are drawn, so"),
]


def file() -> None:
    Path("a.file").write_bytes(b"neither")
    set_up("a.file")


@later
def in_hdf5(content: dict[str, Any], fields: Any = ("x", "y"), client: int = 0, **settings: Any) -> None:
    with h5py.File("a.h5", "w") as written:
        for name, values in content.items():
            written.create_group(name) if values is None else written.create_dataset(name, data=values)
    set_up("a.h5", list(fields), **settings).open(client)


def without_h5py() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "h5py", None)
        set_up("x")


FILES = [
    told(file, "Cannot read 'a.file' as an HDF5 file ( ... ). Correct 'data.datamodule.path'"),
    told(lambda: set_up(write_hdf5(Path("a.h5")), ["z"]), "has no field 'z' ... It ... 'data.datamodule.fields'"),
    told(in_hdf5({"writers": [1]}), "has no group 'examples', but writers. Write a group for each client"),
    told(in_hdf5({"examples": None}), "has no clients. Add at least one"),
    told(in_hdf5({"examples/a/x": np.zeros((3, 2)), "examples/a/y": [1]}), "the fields of client 'a' ... have one value for"),
    told(in_hdf5({"examples/a/x": [1], "examples/b/z": [1]}, ["x"], 1), "client 'b' has no field 'x'. It has z"),
    told(
        in_hdf5({"examples/a/x": np.zeros((1, 2)), "examples/b/x": np.zeros((1, 3))}, ["x"], test_path="a.h5"),
        "the examples of 'x' have the shape [2] and [3], but must have one shape",
    ),
    told(in_hdf5({"examples/a/x": np.zeros((1, 4))}, ["x"], shapes={"x": [1, 5]}), "'x' have the shape [4], but must have one"),
    Refusal(without_h5py, "read with h5py ... pip install 'fl_lightning[hdf5]'", VersionError),
]


def streaming(data: Any = None, **settings: Any) -> Callable[[], Any]:
    streams = {name: Stream(own) for name, own in shares(1, (7, 20)).items()}
    return lambda: fitted(from_clients(streams, **{"batch_size": 5, **(data or {})}), **settings)


def labels_of_streams() -> None:
    data = from_clients({"a": Stream(TensorDataset(*blobs(7, 1)))})
    data.setup("fit")
    data.label_counts()


def training_examples_of_own_batches() -> None:
    """The clients' validation sets are no training examples."""
    loaders = {"a": DataLoader(TensorDataset(*blobs(7, 1)), batch_sampler=[[0, 1], [2]])}
    data = from_clients(loaders, val={"a": TensorDataset(*blobs(20, 2))})
    data.setup("fit")
    data.client_evaluation_view(0, "training")


STREAMS = [
    Refusal(training_examples_of_own_batches, "reads with a loader of its own ... so its training examples cannot be"),
    Refusal(streaming({"client_test": 0.2}), "'data.client_test' must be off, but is 0.2. Each client reads with a loader of"),
    Refusal(streaming(strategy=fl.FedSGD(), local=fl.LocalTraining(full_batch=True)), "'federation.local.full_batch' cannot"),
    Refusal(streaming(attackers=fl.Attackers({0: 0.5})), "so 'federation.attackers' cannot change them. Leave out"),
    *(
        Refusal(streaming(local=fl.LocalTraining(engine=engine)), f"but the engine '{engine}' needs it")
        for engine in ("fabric", "stacked")
    ),
    told(lambda: fitted(from_clients({"a": Stream(TensorDataset(torch.zeros(0, 4)))})), "stream of client a has no examples"),
    Refusal(labels_of_streams, "reads with a loader of its own ... so their labels are not known beforehand. Leave out"),
]
REFUSALS = [*LAZY, *FILES, *STREAMS]
