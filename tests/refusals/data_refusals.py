"""Clients' data, parts and partitions that make no sense."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from client_sites import VAL, Hospital, Images, Missing, Own, Read, fitted, numbers, shares
from federations import Blobs, Consecutive, Plain, blobs
from listed import Users, split
from random_labels import mixed
from refusing import Refusal, fitting, made, told
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SubsetRandomSampler, TensorDataset

import fl_lightning as fl
from fl_lightning import ColumnPartitioner, DataError, FederatedDataModule, IIDPartitioner
from fl_lightning.data.labels import read_labels

from_clients = fl.FederatedDataModule.from_clients


def set_up(clients: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: from_clients(clients, **settings).setup("fit")


Transfers = made("Transfers", Own, on_after_batch_transfer=lambda self, batch, dataloader_idx: batch)
WebLoader = made("WebLoader", IterableDataset, __iter__=lambda self: iter([VAL[:5]]))  # Like webdataset's: a stream of batches


def public_share_of_persons() -> None:
    named = TensorDataset(*blobs(40, 1))
    named.persons = list(range(40))
    fl.FederatedDataModule(Own(DataLoader(named)), fl.IIDPartitioner(2), public_share=0.2).setup("fit")


CLIENTS = [
    Refusal(set_up({}), "'data.clients' must be a dictionary with the data of one or more clients"),
    Refusal(set_up(shares(), batch_size=0), "'data.batch_size' must be 1 or above"),
    Refusal(set_up(shares(), val={"a": VAL, "b": VAL}), "'val' must be sets of the clients a, b, c, or one for the server,"),
    Refusal(set_up({"a": Transfers(VAL), "b": Own(VAL)}), "client 'a' overrides 'on_after_batch_transfer'"),
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
    told(set_up({"a": DataLoader(Dataset(), batch_sampler=[[0]])}), "client 'a' are a Dataset, but must ... with '__len__'"),
    told(set_up({"a": TensorDataset(torch.zeros(0, 4), torch.zeros(0))}), "Client 'a' has no examples"),
    *(
        told(set_up({"a": source}), f"Client 'a' trains on a {kind}, but needs a single torch DataLoader. ... batch_size=None)")
        for source, kind in ((Own([DataLoader(VAL, 5)]), "list"), (WebLoader(), "WebLoader"))
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
        gone(on_engine(name), "No such file ... (in round 0, client b): 'scan_7.png'")
        for name in ("trainer", "fabric", "stacked")
    ),
    *(
        gone(lambda at=at: fitted(from_clients({"north": Hospital(), "south": Hospital(at)})), "client 'south'): 'index.csv'")
        for at in ("prepare", "setup", "train", "val")
    ),
    gone(set_up(of_south("len")), "(in the data of client 'south')"),
    gone(labels, "(in example 11, whose label is read)"),
]

Backwards = made("Backwards", Sampler)
CARRIED = "'shuffle', WeightedRandomSampler or SubsetRandomSampler, or give"


def sampled(words: str, **settings: Any) -> Refusal:
    data = FederatedDataModule(Own(DataLoader(numbers(), **settings)), Consecutive((10, 30)))
    return told(lambda: data.setup("fit"), words)


def rebalanced() -> None:
    chosen = Own(DataLoader(numbers(), 5, sampler=SubsetRandomSampler(range(40))))
    data = FederatedDataModule(chosen, Consecutive((10, 30)), rebalancing=fl.LabelAveraging())
    data.setup("fit")
    data.client(0, 1)


def collated() -> None:
    data = from_clients({"a": DataLoader(numbers(), 5, collate_fn=list)}, val=numbers(5))
    data.setup("fit")
    data.val_dataloader()


SAMPLERS = [
    sampled("uses BatchSampler, which cannot be divided", batch_sampler=BatchSampler(range(40), 2, False)),
    sampled(f"uses Backwards, which cannot ... {CARRIED}", sampler=Backwards()),
    sampled("uses SubsetRandomSampler, which cannot be divided", sampler=SubsetRandomSampler([3, 3, 4])),
    sampled("uses SubsetRandomSampler, which cannot be divided", sampler=SubsetRandomSampler([3, 40])),
    sampled("from 0 to 39, but there are 10 ... never reads). Return indices", sampler=SubsetRandomSampler(range(20, 30))),
    sampled("uses a loader with batch_size=None, which cannot be divided", batch_size=None),
    told(
        set_up({"a": Own(DataLoader(numbers(), 5), DataLoader(numbers(), 5, sampler=Backwards()))}),
        "The validation loader of client 'a' uses Backwards, which cannot be divided among clients. Use",
    ),
    Refusal(rebalanced, "rebalancing' must be off if the training loader draws ... (SubsetRandomSampler"),
    Refusal(collated, "'validation' must be a DataLoader, or 'collate_fn' be passed, since the cl"),
]

SCALES = (("a", 9.0), ("b", 1.0))
PACKAGES = [
    Refusal(set_up({"a": fl.MNISTDataModule(), "b": fl.TorchvisionDataModule("USPS")}), "TorchvisionDataModule of client 'b'"),
    Refusal(
        lambda: from_clients({name: fl.MNISTDataModule(augmentation=fl.RandomCropFlip(2)) for name in "ab"}),
        "client 'b' scales or augments images otherwise, but all ... one object as 'augmentation'; in YAML use one datamodule",
    ),
    Refusal(set_up({"a": fl.MNISTDataModule(), "b": VAL}), "TensorDataset of client 'b' scales or augments images otherwise"),
    Refusal(set_up({n: fl.SimulatedCellsDataModule(density_scale=s) for n, s in SCALES}), "'density_scale' is 9.0 for 'a'"),
    Refusal(lambda: from_clients({name: fl.TableDataModule("x.csv") for name in "ab"}), "'data.clients.a.standardize' must be"),
]


# ------ What clients cannot hold


def setting(words: str, **wrong: Any) -> Refusal:
    return Refusal(lambda: FederatedDataModule(Blobs(), IIDPartitioner(2), **wrong), words)


def held(words: str, partitioner: Any, **more: Any) -> Refusal:
    return Refusal(lambda: FederatedDataModule(Blobs(n=200), partitioner, **more).setup("fit"), words, DataError)


def of(words: str, dataset: Any, partitioner: Any, **more: Any) -> Refusal:
    return Refusal(lambda: split(dataset, partitioner, **more), words, DataError)


def first_batch(dataset: Any) -> None:
    next(iter(split(dataset, IIDPartitioner(2), feature_noise=0.1).client(0, seed=0).train_dataloader()))


Twice = made("Twice", Consecutive, partition=lambda self, num_examples, labels: [torch.tensor([0, 1]), torch.tensor([1, 2])])
Normalised = partial(Plain, batchnorm=True)
SIX, BY_USER, TWO = Consecutive((5, 1)), ColumnPartitioner("user_id"), IIDPartitioner(2)
UNLABELLED = TensorDataset(torch.rand(40, 4), torch.tensor([-1, 0, 1, -1] * 10))
ONE_VALUE = "The column 'user_id' of Users must have one value per example, all numbers or all texts"
HOLDINGS = [
    setting("'data.client_test' must be at least 0 and below 1", client_test=1.0),
    setting("must be below 1 together with 'data.client_test', but is 1.0", client_test=0.5, client_validation=0.5),
    setting("'data.server_set' must be 'datamodule', or 'clients' with 'data.client_test' above 0", server_set="clients"),
    setting("'data.feature_noise' must be 0 or above", feature_noise=-1.0),
    setting("'data.feature_noise' must be 0 with held-out clients, but is 0.1", feature_noise=0.1, held_out_clients=1),
    # parts
    held("'data.client_test' is 0.3, which leaves client 1 no examples to train on: it has 1", SIX, client_test=0.3),
    held("'data.client_validation' is 0.4, which leaves client 0", Consecutive((2, 9)), client_test=0.4, client_validation=0.4),
    told(lambda: split(UNLABELLED, TWO).client_evaluation_view(0, "test"), "no test examples. Set 'data.client_test' to"),
    held("Twice assigned example 1 more than once", Twice()),
    held("Consecutive returned indices from 0 to 200, but there are 200 examples to divide", Consecutive((201,))),
    Refusal(fitting(module=Normalised, data=Blobs(n=6), partitioner=SIX), "Client 1 has a single training example,", DataError),
    # a public share, and noise
    held("'data.public_share' is 0.9, which takes ... examples of each class, but class", IIDPartitioner(4), public_share=0.9),
    of("has no whole number as the label of each example", TensorDataset(torch.rand(40, 4)), TWO, public_share=0.1),
    of("An example has the label -1, but classes are numbered from 0", UNLABELLED, TWO, public_share=0.1),
    told(lambda: first_batch([("a picture", k % 2) for k in range(40)]), "'data.feature_noise' adds noise to"),
    told(lambda: first_batch(TensorDataset(torch.zeros(40, 4).long(), torch.arange(40))), "but the inputs are torch.int64"),
    # columns that tell no clients apart
    *(
        of(ONE_VALUE, Users(column), BY_USER)
        for column in (["a", None, "b"], [0.5, float("nan"), 1.0], [[1, 2]] * 3, torch.ones(3, 2))
    ),
    of("Users has no column 'city': an attribute of that name with one value", Users([1, 2]), ColumnPartitioner("city")),
    of("No value of the column 'user_id' has 9 examples; the", Users([1, 2]), ColumnPartitioner("user_id", min_examples=9)),
]


# ------ Partitioners


PHOTOS = (torch.tensor([0, 1, 0, 1, 1, 1, 1, 0]), ["photo", "sketch"])
NONE = torch.zeros(0, dtype=torch.int64)
BY_LABELS = (fl.DirichletPartitioner(2), fl.ShardPartitioner(2), fl.ClassesPartitioner(2), fl.AdaFedSimulation1())


OTHERS = (fl.QuantityPartitioner(2), BY_USER, fl.DomainPartitioner(2), fl.TablePartitioner([[1, 2]]))
Forgetful = made("Forgetful", Consecutive, partition=lambda self, num_examples, labels: [torch.arange(5), torch.arange(0)])


def dividing(partitioner, labels, words):
    return Refusal(lambda: partitioner.partition(len(labels), labels), words, fl.DataError)


PARTITIONER = [
    Refusal(lambda: fl.TablePartitioner([[1, 2], [0, 0]]), "Client 1 has no data: row ... 'data.partitioner.counts' is all"),
    # labels
    *(told(lambda made=made: made.partition(3, None), f"{type(made).__name__} ... have no labels") for made in BY_LABELS),
    told(lambda: fl.ColumnPartitioner("user").partition(3, None), "ColumnPartitioner ... needs the values"),
    *(dividing(made, torch.tensor([0, -1, 1]), "labels of 0 and above, but the lowest is -1") for made in BY_LABELS),
    *(dividing(made, NONE, "...") for made in (*BY_LABELS, *OTHERS)),
    dividing(fl.TablePartitioner([[1, 1]]), torch.tensor([0, 1, 2]), "labels from 0 to 2, but the partition table has columns"),
    told(lambda: read_labels(TensorDataset(torch.zeros(3, 2))), "has no whole number as ... a partitioner without labels"),
    told(lambda: read_labels(TensorDataset(torch.zeros(3, 2), torch.zeros(3))), "has no whole number as ... they are float32"),
    # sizes
    dividing(fl.TablePartitioner([[1]] * 3, scale_to_fit=True), torch.tensor([0, 0]), "Class 0 has 2 examples for 3 clients"),
    dividing(fl.TablePartitioner([[1, 2], [0, 2]]), torch.tensor([0, 0, 1, 1, 1]), "requests 4 examples of class 1, but the"),
    dividing(fl.ClassesPartitioner(3, 2), torch.arange(7).repeat(10), "3 clients with 2 classes ... the 7 classes"),
    dividing(fl.ClassesPartitioner(4, 3), torch.arange(2).repeat(10), "4 clients with 3 classes ... the 2 classes"),
    dividing(fl.ClassesPartitioner(8, 1), torch.tensor([0] * 20 + [1] * 3), "has 3 examples, fewer than ... (about 4). Lower"),
    dividing(fl.QuantityPartitioner(4, 0.5, min_examples=99), torch.arange(400), "All 11 draws ... fewer than 99 examples;"),
    *(
        dividing(fl.AdaFedSimulation1(), mixed(counts), "classes 0 to 9 with more than 500 ... [501, 501, 501")
        for counts in ([501] * 9, [501] * 9 + [500], [501] * 11)
    ),
    told(lambda: fl.DomainPartitioner(4).partition_by(*PHOTOS), "'photo' has 3 examples for 4 clients. ... per_domain'"),
    told(lambda: fl.FederatedDataModule(Blobs(), Forgetful()).setup("fit"), "Forgetful left client 1 without data"),
]


REFUSALS = [*CLIENTS, *FILES, *SAMPLERS, *PACKAGES, *HOLDINGS, *PARTITIONER]
