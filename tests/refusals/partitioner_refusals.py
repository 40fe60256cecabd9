"""Partitioners: wrong settings, and data that they cannot divide as asked."""

from __future__ import annotations

import torch
from federations import Blobs, Consecutive
from random_labels import mixed
from refusing import Refusal
from torch.utils.data import TensorDataset

import fl_lightning as fl
from fl_lightning.data.labels import read_labels

SITES = (torch.tensor([2, 0, 2, 3, 0, 2]), ["Bonn", "Gent", "Lund", "Pisa"])
DRAWN = torch.arange(4).repeat(100)
BY_LABELS = (fl.DirichletPartitioner(2), fl.ShardPartitioner(2), fl.ClassesPartitioner(2), fl.AdaFedSimulation1())


class Forgetful(Consecutive):
    def partition(self, num_examples, labels):
        return [torch.arange(5), torch.arange(0)]


def dividing(partitioner, labels, words):
    return Refusal(lambda: partitioner.partition(len(labels), labels), words, fl.DataError)


def told(call, words):
    return Refusal(call, words, fl.DataError)


REFUSALS = [
    *(
        Refusal(lambda make=make, beta=beta: make(3, beta), "'data.partitioner.beta'")
        for make in (fl.DirichletPartitioner, fl.QuantityPartitioner)
        for beta in (0.0, -1.0, float("nan"), float("inf"))
    ),
    *(
        Refusal(lambda make=make, wrong=wrong: make(**wrong), f"'data.partitioner.{next(iter(wrong))}' must be")
        for make, wrong in (
            (fl.IIDPartitioner, {"num_clients": 0}),
            (fl.DirichletPartitioner, {"num_clients": 0}),
            (fl.DirichletPartitioner, {"min_examples": 0}),
            (fl.QuantityPartitioner, {"num_clients": 0}),
            (fl.QuantityPartitioner, {"min_examples": 0}),
            (fl.ShardPartitioner, {"num_clients": 0}),
            (fl.ShardPartitioner, {"shards_per_client": 0}),
            (fl.ClassesPartitioner, {"num_clients": 0}),
            (fl.ClassesPartitioner, {"classes_per_client": 0}),
            (fl.ColumnPartitioner, {"min_examples": 0, "column": "user"}),
            (fl.DomainPartitioner, {"clients_per_domain": 0}),
        )
    ),
    Refusal(lambda: fl.TablePartitioner([[1, 2], [3]]), "rows of equal length"),
    Refusal(lambda: fl.TablePartitioner([[1, -2]]), "counts of 0 or above"),
    Refusal(lambda: fl.TablePartitioner([[1, 2], [0, 0]]), "Client 1 has no data: row ... 'data.partitioner.counts' is all"),
    # labels
    *(told(lambda made=made: made.partition(3, None), f"{type(made).__name__} ... have no labels") for made in BY_LABELS),
    told(lambda: fl.ColumnPartitioner("user").partition(3, None), "ColumnPartitioner ... needs the values"),
    *(dividing(made, torch.tensor([0, -1, 1]), "labels of 0 and above, but the lowest is -1") for made in BY_LABELS),
    *(
        dividing(made, torch.zeros(0, dtype=torch.int64), "...")
        for made in (
            *BY_LABELS,
            fl.QuantityPartitioner(2),
            fl.ColumnPartitioner("user"),
            fl.DomainPartitioner(2),
            fl.TablePartitioner([[1, 2]]),
        )
    ),
    dividing(fl.TablePartitioner([[1, 1]]), torch.tensor([0, 1, 2]), "labels from 0 to 2, but the partition table has columns"),
    told(lambda: read_labels(TensorDataset(torch.zeros(3, 2))), "has no whole number as ... a partitioner without labels"),
    told(lambda: read_labels(TensorDataset(torch.zeros(3, 2), torch.zeros(3))), "has no whole number as ... they are float32"),
    # sizes
    dividing(
        fl.TablePartitioner([[1], [1], [1]], scale_to_fit=True),
        torch.zeros(2, dtype=torch.int64),
        "Class 0 has 2 examples for 3 clients that request it. Set column 0 of 'data.partitioner.counts' to 0",
    ),
    dividing(fl.TablePartitioner([[1, 2], [0, 2]]), torch.tensor([0, 0, 1, 1, 1]), "requests 4 examples of class 1, but the"),
    dividing(fl.ClassesPartitioner(3, 2), torch.arange(7).repeat(10), "3 clients with 2 classes ... the 7 classes"),
    dividing(fl.ClassesPartitioner(4, 3), torch.arange(2).repeat(10), "4 clients with 3 classes ... the 2 classes"),
    dividing(fl.ClassesPartitioner(8, 1), torch.tensor([0] * 20 + [1] * 3), "has 3 examples, fewer than ... (about 4). Lower"),
    *(
        dividing(make(4, 0.5, min_examples=99), DRAWN, "All 11 draws ... fewer than 99 examples; the best had")
        for make in (fl.DirichletPartitioner, fl.QuantityPartitioner)
    ),
    *(
        dividing(
            fl.AdaFedSimulation1(),
            mixed(counts),
            f"classes 0 to 9 with more than 500 ... {counts if len(counts) > 9 else [*counts, 0]}",
        )
        for counts in ([501] * 9, [501] * 9 + [500], [501] * 11)
    ),
    told(lambda: fl.ColumnPartitioner("hospital", min_examples=4).partition_by(*SITES), "'hospital' has 4 examples; the"),
    told(
        lambda: fl.DomainPartitioner(4).partition_by(torch.tensor([0, 1, 0, 1, 1, 1, 1, 0]), ["photo", "sketch"]),
        "'photo' has 3 examples for 4 clients. ... 'data.partitioner.clients_per_domain'",
    ),
    told(lambda: fl.FederatedDataModule(Blobs(), Forgetful()).setup("fit"), "Forgetful left client 1 without data"),
]
