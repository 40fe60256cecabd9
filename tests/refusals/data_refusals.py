"""Clients' own data, loaders and parts: what cannot be used together, and files that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from client_sites import VAL, Hospital, Images, Missing, Own, Read, fitted, shares
from federations import Blobs, blobs
from refusing import Refusal
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision.transforms import v2

import fl_lightning as fl

from_clients = fl.FederatedDataModule.from_clients


def told(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, fl.DataError)


def set_up(clients: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: from_clients(clients, **settings).setup("fit")


class Transfers(Own):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Blackened(fl.MNISTDataModule):
    """One of the package's, whose clients share how images are changed, with a change of its own."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class WebLoader(IterableDataset[Any]):
    """Like webdataset's: a stream of batches."""

    def __iter__(self) -> Any:
        return iter([VAL[:5]])


def public_share_of_persons() -> None:
    named = TensorDataset(*blobs(40, 1))
    named.persons = list(range(40))
    fl.FederatedDataModule(Own(DataLoader(named)), fl.IIDPartitioner(2), public_share=0.2).setup("fit")


CLIENTS = [
    Refusal(set_up({}), "'data.clients' must be a dictionary with the data of one or more clients"),
    Refusal(set_up(shares(), batch_size=0), "'data.batch_size' must be 1 or above"),
    Refusal(set_up(shares(), val={"a": VAL, "b": VAL}), "'val' must be sets of the clients a, b, c, or one for the server,"),
    Refusal(set_up({"a": Transfers(VAL), "b": Own(VAL)}), "client 'a' overrides 'on_after_batch_transfer'"),
    Refusal(set_up({"a": fl.MNISTDataModule(), "b": Blackened()}), "client 'b' overrides 'on_before_batch_transfer'"),
    Refusal(set_up(shares(), public_share=0.1), "'data.public_share' must be 0 if each client"),
    Refusal(set_up(shares(), val=shares(2, (4, 5, 6)), client_validation=0.2), "'data.client_validation' must be 0 if clients"),
    Refusal(lambda: fl.FederatedDataModule(Blobs(), clients={"a": Images()}), "'data.datamodule' must be null ... but is"),
    Refusal(fl.FederatedDataModule, "'data.datamodule' must be a LightningDataModule, but ... Give one, each client its own"),
    Refusal(lambda: from_clients({1: VAL, "1": VAL}), "'data.clients' must be clients whose names differ as texts, but is [1,"),
    Refusal(set_up({"a": DataLoader(VAL, 5), "b": DataLoader(VAL, 6)}), "'batch_size' is 5 for 'a', but 6 for 'b'"),
    Refusal(set_up({"a": DataLoader(VAL, 5), "b": DataLoader(VAL, 5, shuffle=True)}), "'shuffle' is False for ... True for"),
    Refusal(lambda: fl.FederatedDataModule(Blobs(), memory_limit=-1).setup("fit"), "'data.memory_limit' must ... in GiB, or"),
    Refusal(public_share_of_persons, "'data.public_share' must be 0 if the data name persons"),
    told(set_up({"a": 3}), "client 'a' are a int, but must be a dataset"),
    told(set_up({"a": TensorDataset(torch.zeros(0, 4), torch.zeros(0))}), "Client 'a' has no examples"),
    *(
        told(set_up({"a": source}), f"Client 'a' trains on a {kind}, but needs a single torch DataLoader. ... batch_size=None)")
        for source, kind in ((Own([DataLoader(VAL, 5)]), "list"), (WebLoader(), "WebLoader"), (Own(WebLoader()), "WebLoader"))
    ),
]


def gone(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, FileNotFoundError)


def on_engine(engine: Any) -> Callable[[], Any]:
    sets = {name: (Missing if name == "b" else Read)(own) for name, own in shares().items()}
    return lambda: fitted(from_clients(sets, batch_size=5), rounds=1, local=fl.LocalTraining(engine=engine))


def of_south(where: str) -> dict[str, Any]:
    return {"north": Read(TensorDataset(*blobs(9, 1))), "south": Missing(TensorDataset(*blobs(9, 2)), where)}


def labels() -> None:
    data = from_clients(of_south("item"))
    data.setup("fit")
    data.label_counts()


FILES = [
    *(
        gone(on_engine(engine), "No such file ... (in round 0, client b): 'scan_7.png'")
        for engine in ("trainer", "fabric", "stacked", "auto")
    ),
    *(
        gone(
            lambda where=where: fitted(from_clients({"north": Hospital(), "south": Hospital(where)})),
            "No such file ... (in the data of client 'south'): 'index.csv'",
        )
        for where in ("prepare", "setup", "train", "val")
    ),
    gone(set_up(of_south("len")), "(in the data of client 'south')"),
    gone(labels, "(in example 11, whose label is read)"),
]

PACKAGES = [
    Refusal(
        lambda: from_clients({"a": fl.MNISTDataModule(), "b": fl.TorchvisionDataModule("USPS")}),
        "The TorchvisionDataModule of client 'b' scales or augments images otherwise",
    ),
    Refusal(
        lambda: from_clients({name: fl.MNISTDataModule(augmentation=fl.RandomCropFlip(2)) for name in "ab"}),
        "client 'b' scales or augments images otherwise, but all ... one object as 'augmentation'; in YAML use one datamodule",
    ),
    Refusal(
        lambda: from_clients({name: fl.MNISTDataModule(augmentation=v2.Lambda(torch.Generator())) for name in "ab"}),
        "client 'b' scales or augments images otherwise",
    ),
    Refusal(
        set_up({"a": fl.MNISTDataModule(), "b": TensorDataset(torch.zeros(3, 1, 28, 28), torch.zeros(3))}),
        "The TensorDataset of client 'b' scales or augments images otherwise",
    ),
    Refusal(
        lambda: from_clients({"a": fl.SimulatedCellsDataModule(), "b": fl.SimulatedCellsDataModule(density_scale=1.0)}),
        "'density_scale' is 100.0 for 'a', but 1.0 for 'b'",
    ),
]
TABLES = [
    Refusal(lambda: from_clients({name: fl.TableDataModule("x.csv") for name in "ab"}), "'data.clients.a.standardize' must be")
]
REFUSALS = [*TABLES, *CLIENTS, *FILES, *PACKAGES]
