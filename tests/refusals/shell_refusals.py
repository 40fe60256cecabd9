"""Types of arguments, data that cannot be federated, flags of the Trainer, and errors in rounds."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from engine_runs import stepping, variant
from federations import Blobs, Consecutive, Plain, changed, trainer
from refusing import Refusal, fitting
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fl_lightning as fl
from fl_lightning.data.loaders import sharded
from fl_lightning.studies import ReportOptions

TENSORS = TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))


def wrong_types() -> list[Refusal]:
    orchestrator, data = fl.FederatedOrchestrator, fl.FederatedDataModule
    rows = {
        "'strategy' must be a Strategy or None, but is 'FedAvg' (a str). Write FedAvg(...).": lambda: orchestrator("FedAvg"),
        "but is 'adafet' (a str). Write AdaFed(...).": lambda: orchestrator("adafet"),
        "'partitioner' must be a Partitioner or None, but is 'iid' (a str). Write IIDPartitioner(...).": lambda: data(
            Blobs(), "iid"
        ),
        "'strategy' must be a Strategy or None, but is the class FedAvg. Write FedAvg().": lambda: orchestrator(fl.FedAvg),
        "'data.datamodule' must be a LightningDataModule, but is <class 'federations.Blobs'>. Give one": lambda: data(
            Blobs, fl.IIDPartitioner(2)
        ),
        "FederatedDataModule: 'partitioner' must be a Partitioner or None, but is 8 (an int).": lambda: data(Blobs(), 8),
        "'num_clients' must be a whole number, but is 4.0 (a float). Write 4.": lambda: fl.IIDPartitioner(4.0),
        "'max_epochs' must be a whole number, but is 1.5 (a float).": lambda: fl.LocalTraining(max_epochs=1.5),
        "but is {'max_epochs': 2} (a dict). Write LocalTraining(max_epochs=2).": lambda: orchestrator(local={"max_epochs": 2}),
        "but is True (a bool). Write ClientEvaluation(...).": lambda: orchestrator(client_evaluation=True),
        "'clients_per_round' must be a number, but is 'half' (a str).": lambda: orchestrator(clients_per_round="half"),
        "'clients_per_round' must be a number, but is True (a bool).": lambda: orchestrator(clients_per_round=True),
        "'server_optimizer' must be a function or None, but is 'adam' (a": lambda: orchestrator(server_optimizer="adam"),
        "AdaFed: 'power' must be a number, but is '2' (a str).": lambda: fl.AdaFed(power="2"),
        "must be a list of Transform objects or None, but is a ClipUpdate. Put it in a list.": lambda: orchestrator(
            transforms=fl.ClipUpdate(1.0)
        ),
        "but is 'net.3' (a str). Write [PersonalPart(...)].": lambda: orchestrator(personal="net.3"),
        "Attackers: 'model' must be a ModelAttack or None, but is 'SignFlip'": lambda: fl.Attackers(model="SignFlip"),
        "RingFed: 'periods' must be a whole number, but is '2' (a str).": lambda: fl.RingFed(periods="2"),
        "TablePartitioner: 'counts' must be a list of": lambda: fl.TablePartitioner("counts.csv"),
        "'data.clients' must be a dictionary with the data of one or more clients: {'a': ..., 'b': ...}, but is [": lambda: (
            data.from_clients([TensorDataset(torch.zeros(4))])
        ),
        "'options' must be": lambda: orchestrator(options=[fl.Scaffold()]),
    }
    unknown = [
        Refusal(lambda name=name: fl.LocalTraining(**{name: 1}), name, TypeError) for name in ("devices", "logger", "max_epoch")
    ]
    unknown += [Refusal(lambda: fl.IIDPartitioner(clients=3), "unexpected keyword argument 'clients'", TypeError)]
    return [Refusal(call, words) for words, call in rows.items()] + unknown


# ------------------------------------------------------------------ data and labels


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


def divided(data: Any, partitioner: Any = None, **more: Any) -> Any:
    return lambda: fl.FederatedDataModule(data, partitioner or fl.IIDPartitioner(2), **more).setup("fit")


def labelled(label: int, **more: Any) -> Any:
    """Return a call that divides data whose sixth label is no class."""
    data = Blobs()
    data.train[1][5] = label
    more = {"partitioner": fl.IIDPartitioner(3), **more}
    return lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), fl.FederatedDataModule(data, **more))


def task_on(label: int) -> Any:
    """Return a call that fits a task to data with such a label, which nobody read before."""
    data = Blobs()
    data.train[1][5] = label
    return fitting(
        module=lambda: fl.ClassificationTask(Plain().net, 3, fl.CrossEntropy()), data=data, partitioner=fl.IIDPartitioner(3)
    )


LARGE = "An example has the label 1000000000000, but classes are numbered from 0 to below 1,000,000. Correct or remove it"
NEGATIVE = "An example has the label -1, but classes are numbered from 0 ... remove it"
DATA = [
    Refusal(labelled(10**12, partitioner=fl.DirichletPartitioner(3)), LARGE, fl.DataError),
    Refusal(labelled(10**12, public_share=0.1), LARGE, fl.DataError),
    Refusal(labelled(10**12, rebalancing=fl.LabelAveraging()), LARGE, fl.DataError),
    Refusal(labelled(-1, rebalancing=fl.LabelAveraging()), NEGATIVE, fl.DataError),
    Refusal(task_on(10**12), "The labels go from ... 1000000000000 ... but the model has classes 0 to 2", fl.DataError),
    Refusal(task_on(-1), "The labels go from -1 ... but the model has classes 0 to 2", fl.DataError),
    Refusal(task_on(3), "labels go from 0 to 3, but the model has classes 0 to 2. Set 'model.num_classes'", fl.DataError),
    Refusal(divided(L.LightningDataModule()), "has no 'train_dataloader', but a federation needs one torch", fl.DataError),
    Refusal(divided(changed("train", [1, 2])), "returns a list, but a federation needs one torch DataLoader", fl.DataError),
    Refusal(divided(changed("train", DataLoader(Stream()))), "trains on an iterable dataset", fl.DataError),
    Refusal(lambda: sharded(DataLoader(TENSORS), 0, 7), "evaluation set of 6 examples cannot be split over 7 r", fl.DataError),
    Refusal(lambda: fl.FederatedDataModule(Blobs(), Consecutive(), client_test=20), "'data.client_test' must be at least 0"),
    *(
        Refusal(lambda share=share: fl.MNISTDataModule(validation_share=share), "validation_share' must be at least 0 and")
        for share in (-0.1, 1.0)
    ),
    *(
        Refusal(
            divided(Blobs(12), variant(fl.IIDPartitioner, partition=lambda self, n, y, part=part: [torch.arange(2), part])(2)),
            f"Variant gave client 1 {said} ... Return the indices of each client's examples",
            fl.DataError,
        )
        for part, said in (
            (torch.ones(12, dtype=torch.bool), "tensor([True, True, True"),
            (torch.zeros(2, 2, dtype=torch.int64), "tensor([[0, 0],"),
            ([0.5, 1.0], "[0.5, 1.0], which"),
            ("abc", "'abc', which"),
            (3, "3, which"),
        )
    ),
]

# ------------------------------------------------------------------ fits


def after(module: Plain, name: str, value: Any) -> Plain:
    setattr(module, name, value)
    return module


ROUNDS = [
    Refusal(lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), Blobs()), "'fit' got Blobs. Wrap your datamodule:"),
    Refusal(lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), Blobs().train_dataloader()), "'fit' got no datamodule"),
    Refusal(fitting(clients_per_round=2.0), "whole number of clients, but is 2.0. Write 2 for a number, or 0.02 for 2 %."),
    Refusal(fitting(clients_per_round=50.5), "whole number of clients, but is 50.5. Write 0.505 for 50.5 %."),
    Refusal(fitting(clients_per_round=-0.5), "whole number of clients, but is -0.5."),
    Refusal(fitting(clients_per_round=4), "a number of clients from 1 to 3 (there are 3 clients), but is 4"),
    Refusal(
        fitting(module=stepping(lambda module, x, y, k: nn.functional.cross_entropy(module(x), y) * float("nan"))),
        "Client 1 (of 20 examples) in round 0: the training loss is nan ... Lower its learning rate",
        fl.ClientError,
    ),
    Refusal(
        fitting(module=variant(on_train_end=lambda self: self.net[0].weight.data.fill_(float("inf")))),
        "in round 0: the weights that it sent are not finite",
        fl.ClientError,
    ),
    Refusal(
        fitting(module=lambda: fl.ClassificationTask(Plain().net, 3, optimizer=lambda own: torch.optim.SGD(own, lr=-0.5))),
        "'model.optimizer' rejects its settings: Invalid learning rate: -0.5",
    ),
    Refusal(
        fitting(module=lambda: after(Plain(), "training_step", lambda batch, batch_idx: None)),
        "'training_step' of Plain was replaced on the instance",
    ),
    Refusal(fitting(module=stepping(lambda *_: 1 / 0)), "division by zero", ZeroDivisionError),
    *(
        Refusal(
            fitting(flags={name: value}), f"'trainer.{name}' is {value}, but ... Remove it and set 'federation.local.{name}' in"
        )
        for name, value in (("limit_train_batches", 1), ("gradient_clip_val", 1.0), ("accumulate_grad_batches", 2))
    ),
    *(
        Refusal(lambda setting=setting: ReportOptions(**setting), f"'report.{next(iter(setting))}' must be at least")
        for setting in ({"every": 0}, {"after": -1}, {"last": 0})
    ),
]

REFUSALS = [*wrong_types(), *DATA, *ROUNDS]
