"""What clients cannot hold: parts, shares, noise, columns and batches that make no sense."""

from __future__ import annotations

from typing import Any

import torch
from federations import Blobs, Consecutive, Plain
from listed import Users, split
from refusing import Refusal, fitting
from torch.utils.data import TensorDataset

from fl_lightning import ColumnPartitioner, DataError, FederatedDataModule, IIDPartitioner


def setting(words: str, **wrong: Any) -> Refusal:
    return Refusal(lambda: FederatedDataModule(Blobs(), IIDPartitioner(2), **wrong), words)


def held(words: str, partitioner: Any, **more: Any) -> Refusal:
    return Refusal(lambda: FederatedDataModule(Blobs(n=200), partitioner, **more).setup("fit"), words, DataError)


def of(words: str, dataset: Any, partitioner: Any, **more: Any) -> Refusal:
    return Refusal(lambda: split(dataset, partitioner, **more), words, DataError)


def first_batch(dataset: Any) -> None:
    next(iter(split(dataset, IIDPartitioner(2), feature_noise=0.1).client(0, seed=0).train_dataloader()))


class Twice(Consecutive):
    def partition(self, num_examples, labels):
        return [torch.tensor([0, 1]), torch.tensor([1, 2])]


class Normalised(Plain):
    def __init__(self) -> None:
        super().__init__(batchnorm=True)


SIX, BY_USER, TWO = Consecutive((5, 1)), ColumnPartitioner("user_id"), IIDPartitioner(2)
UNLABELLED = TensorDataset(torch.rand(40, 4), torch.tensor([-1, 0, 1, -1] * 10))
ONE_VALUE = "The column 'user_id' of Users must have one value per example, all numbers or all texts"
REFUSALS = [
    setting("'data.client_test' must be at least 0 and below 1", client_test=1.0),
    setting("'data.client_validation' must be at least 0 and below 1", client_validation=-0.1),
    setting("must be below 1 together with 'data.client_test', but is 1.0", client_test=0.5, client_validation=0.5),
    setting("'data.server_set' must be 'datamodule', or 'clients' with 'data.client_test' above 0", server_set="clients"),
    setting("'data.public_share' must be at least 0 and below 1", public_share=1.0),
    setting("'data.feature_noise' must be 0 or above", feature_noise=-1.0),
    setting("'data.feature_noise' must be 0 with held-out clients, but is 0.1", feature_noise=0.1, held_out_clients=1),
    # parts
    *(
        held(
            f"'data.{part}' is 0.3, which leaves client 1 no examples to train on: it has 1", Consecutive((5, 1)), **{part: 0.3}
        )
        for part in ("client_validation", "client_test")
    ),
    held("'data.client_validation' is 0.4, which leaves client 0", Consecutive((2, 9)), client_test=0.4, client_validation=0.4),
    Refusal(
        lambda: split(UNLABELLED, TWO).client_evaluation_view(0, "test"),
        "have no test examples. Set 'data.client_test' to a share above 0",
        DataError,
    ),
    held("Twice assigned example 1 more than once", Twice()),
    held("Consecutive returned indices from 0 to 200, but there are 200 examples to divide", Consecutive((201,))),
    Refusal(fitting(module=Normalised, data=Blobs(n=6), partitioner=SIX), "Client 1 has a single training example,", DataError),
    # a public share, and noise
    held("'data.public_share' is 0.9, which takes ... examples of each class, but class", IIDPartitioner(4), public_share=0.9),
    of("has no whole number as the label of each example", TensorDataset(torch.rand(40, 4)), TWO, public_share=0.1),
    of("An example has the label -1, but classes are numbered from 0", UNLABELLED, TWO, public_share=0.1),
    Refusal(lambda: first_batch([("a picture", k % 2) for k in range(40)]), "'data.feature_noise' adds noise to", DataError),
    Refusal(
        lambda: first_batch(TensorDataset(torch.zeros(40, 4).long(), torch.arange(40) % 2)),
        "adds noise to floating-point tensors, such as images, but the inputs are torch.int64",
        DataError,
    ),
    # columns that tell no clients apart
    *(
        of(ONE_VALUE, Users(column), BY_USER)
        for column in (["a", None, "b"], [0.5, float("nan"), 1.0], [[1, 2]] * 3, torch.ones(3, 2))
    ),
    of("Users has no column 'city': an attribute of that name with one value", Users([1, 2]), ColumnPartitioner("city")),
    of("No value of the column 'user_id' has 9 examples; the", Users([1, 2]), ColumnPartitioner("user_id", min_examples=9)),
]
