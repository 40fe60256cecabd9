"""Options of a federation: attackers, personal parts, evaluation at the clients, clients held out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from federations import Blobs, Consecutive, NoValidation, Plain, blobs, network, trainer
from lazy_stores import Opened
from lightning.pytorch.callbacks import EarlyStopping
from poisoning import mislabel
from refusing import Refusal, fitting
from torch.utils.data import TensorDataset

import fl_lightning as fl

HEAD, ALL = fl.PersonalPart(names="net.3.*"), fl.PersonalPart(names="*")
EVALUATED = fl.ClientEvaluation(1, "val_acc")


# ---------------------------------------------------------------- calls that fail


def attacked(**settings: Any) -> Callable[[], Any]:
    return fitting(attackers=fl.Attackers(**{"clients": [1], **settings}))


MEAN = [fl.PersonalPart(names=HEAD.names, start="mean")]


def personal(*callbacks: Any, parts: Any = (HEAD,), **settings: Any) -> Callable[[], Any]:
    """Fit a module with BatchNorm and personal parts; its clients have test parts if they are evaluated."""

    def call() -> None:
        data = fl.FederatedDataModule(Blobs(), Consecutive(), client_test=0.3 if "client_evaluation" in settings else 0.0)
        module = settings.pop("module", None) or Plain(batchnorm=True)
        federation = fl.FederatedOrchestrator(personal=list(parts), **settings)
        trainer(1, federation, *callbacks, enable_checkpointing=True).fit(module, data)

    return call


def evaluated(evaluation: fl.ClientEvaluation) -> Callable[[], Any]:
    data = partial(fl.FederatedDataModule, Blobs(), Consecutive(), client_test=0.3)
    return lambda: trainer(1, fl.FederatedOrchestrator(client_evaluation=evaluation), num_sanity_val_steps=1).fit(
        Plain(), data()
    )


def lied_to(attack: fl.LabelAttack) -> Callable[[], Any]:
    """Read the labels of a client, of 7 examples in 3 classes, that an attack has changed."""

    def call() -> None:
        data = fl.FederatedDataModule(Blobs(shuffle=False), Consecutive())
        data.setup("fit")
        mislabel(data, {0: attack}, 0)
        data.label_counts()
        data.client(0, 0)

    return call


def held_out(clients: Any, **settings: Any) -> fl.FederatedDataModule:
    data = {name: TensorDataset(*blobs(8, seed)) for seed, name in enumerate("abcde")}
    return fl.FederatedDataModule.from_clients(data, batch_size=5, held_out_clients=clients, **settings)


def set_up(make: Callable[[], fl.FederatedDataModule]) -> Callable[[], Any]:
    return lambda: make().setup("fit")


def opened() -> fl.FederatedDataModule:
    read = lambda client: TensorDataset(*blobs(8, client))  # noqa: E731
    return fl.FederatedDataModule(Opened(read, [8] * 4), held_out_clients=1)


# ---------------------------------------------------------------- what they are given


class WrongLength(fl.ModelAttack):
    def forge(self, change: Any, crowd: Any, generator: Any) -> Any:
        return change[1:]


class Returns(fl.LabelAttack):
    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def change(self, labels: Any, num_classes: int, generator: Any) -> Any:
        return self.labels(labels)


REFUSALS = [
    # attackers
    Refusal(lambda: fl.Attackers(clients=[1]), "together with at least one of the others (how they attack)"),
    Refusal(lambda: fl.Attackers(model=fl.SignFlip()), "together with at least one of the others (how they attack)"),
    Refusal(attacked(clients=[9], model=fl.SignFlip()), "'federation.attackers.clients' must be clients from 0 to 2"),
    Refusal(lambda: fl.Attackers(clients=1.5, model=fl.SignFlip()), "attackers.clients' must be ids, or a share from 0 to"),
    Refusal(lied_to(fl.PermutedLabels(3)), "'federation.attackers.labels.shift' must be not a multiple of the 3 classes"),
    Refusal(lambda: fl.RelabelClass(1, 1), "must be a class other than 'source'"),
    Refusal(lambda: fl.RelabelClass(-1, 1), "must be a class of 0 or above"),
    Refusal(lied_to(fl.RelabelClass(3, 0)), "'federation.attackers.labels.source' must be one of the classes 0 to 2"),
    Refusal(
        fitting(attackers=fl.Attackers(clients=[1], model=fl.SignFlip()), route=fl.Mediators(2)),
        "SignFlip changes the updates that clients send",
    ),
    Refusal(attacked(model=WrongLength()), "WrongLength.forge returned a tensor of shape (66,) in float64, but ... (67,)"),
    Refusal(lied_to(Returns(lambda labels: None)), "Returns.change returned None, but a tensor of shape (7,) is needed"),
    Refusal(lied_to(Returns(lambda labels: labels[:1])), "Returns.change returned a tensor of shape (1,) in int64, but a"),
    # backdoors
    *(
        Refusal(
            lambda inputs=inputs: fl.Backdoor(size=4).stamp(inputs),
            f"the dataset returns {came}. Let its transform return such a tensor, or lower 'size'.",
            fl.DataError,
        )
        for inputs, came in ((torch.zeros(3), "shape (3,)"), (torch.zeros(1, 3, 9), "shape (1, 3, 9)"), ([1.0], "type list"))
    ),
    *(
        Refusal(
            lambda value=value: fl.Backdoor(value=value).stamp(torch.zeros(1, 8, 8, dtype=torch.uint8)),
            "'federation.attackers.backdoor.value' is ... whole numbers from 0 to 255. Set it to",
            fl.DataError,
        )
        for value in (0.5, 300.0, -1.0)
    ),
    Refusal(attacked(backdoor=fl.Backdoor(3)), "'federation.attackers.backdoor.target' must be one of the classes 0 to 2"),
    Refusal(
        fitting(data=NoValidation(), attackers=fl.Attackers(clients=[0], backdoor=fl.Backdoor())),
        "'federation.attackers.backdoor' needs its success rate on the",
    ),
    # personal parts
    *(
        Refusal(lambda given=given: fl.PersonalPart(**given), words)
        for given, words in (
            ({}, "it needs exactly one of them"),
            ({"modules": "torch.nn.Linear", "names": "a"}, "it needs exactly one of them"),
            ({"modules": "torch.nn.Linea"}, "names the class 'torch.nn.Linea', which cannot be imported"),
            ({"modules": "Linear"}, "names the class 'Linear', which cannot be imported"),
            ({"modules": "torch.nn.functional.relu"}, "which is not a torch.nn.Module"),
        )
    ),
    Refusal(personal(parts=MEAN, asynchronous=fl.Asynchronous(2, 1)), "'start' in 'federation.personal' is 'mean', which"),
    Refusal(
        personal(parts=MEAN, client_evaluation=fl.ClientEvaluation(1, "val_acc", compare_alone=True)),
        "compare_alone' trains clients from the first model, but 'start' in 'federation.personal' is 'mean'",
    ),
    Refusal(personal(parts=[fl.PersonalPart(names="net.4.*")]), "'net.4.*', which match no parameter ... Did you mean net"),
    Refusal(personal(parts=[fl.PersonalPart(modules="torch.nn.BatchNorm2d")]), "contains no such layer ... Did you mean"),
    Refusal(personal(strategy=fl.AdaFed("val_acc")), "AdaFed scores clients' models on the server's set"),
    Refusal(personal(strategy=fl.ShapleyValues("val_acc")), "ShapleyValues scores clients' models"),
    Refusal(personal(route=fl.LocalOnly("val_acc")), "LocalOnly scores models on the server's set, but with"),
    Refusal(personal(attackers=fl.Attackers(clients=[1], backdoor=fl.Backdoor(1))), "'federation.attackers.backdoor' is"),
    Refusal(personal(parts=[ALL], strategy=fl.Scaffold()), "matches every parameter, so Scaffold has nothing to correct"),
    Refusal(
        personal(parts=[ALL], module=fl.ClassificationTask(network(), 3, fl.F1WeightedCrossEntropy(3))),
        "F1WeightedCrossEntropy adapts to the server's validation",
    ),
    *(
        Refusal(personal(callback, **settings), "the server's model is incomplete, so the server does not validate")
        for callback, settings in (
            (fl.BestCheckpoint("val_acc"), {}),
            (EarlyStopping("val_loss"), {"client_evaluation": EVALUATED}),
            (fl.BestCheckpoint("val_acc"), {"client_evaluation": fl.ClientEvaluation(2, "val_acc")}),
        )
    ),
    Refusal(personal(EarlyStopping("val_ac"), client_evaluation=EVALUATED), "EarlyStopping monitors ... Did you mean val_acc?"),
    # evaluation at the clients
    Refusal(fitting(client_evaluation=fl.ClientEvaluation(1)), "each client's own test part, but ... Set 'data.client_test'"),
    *(
        Refusal(evaluated(evaluation), "'federation.client_evaluation.metric' is 'val_f1', which Plain does")
        for evaluation in (fl.ClientEvaluation(1, "val_f1"), fl.ClientEvaluation(0, "val_f1", personal_epochs=1))
    ),
    # clients held out
    Refusal(lambda: held_out(1.0), "'data.held_out_clients' must be a share of at least 0 and below 1"),
    Refusal(lambda: held_out(20.0), "Write 20 for a number, or 0.2 for 20 %"),
    Refusal(lambda: held_out(-1), "a number of clients, or a list of their names, but is -1"),
    Refusal(lambda: held_out(["a", "a"]), "must be names that differ, but is ['a', 'a']"),
    Refusal(set_up(lambda: held_out(["f"])), "'data.held_out_clients' has 'f', but the clients are: a, ... Use their names."),
    Refusal(set_up(lambda: held_out(5)), "must be fewer than the 5 clients, so that some train, but is 5"),
    Refusal(set_up(lambda: held_out(list("abcde"))), "must be fewer than the 5 clients"),
    Refusal(
        set_up(lambda: fl.FederatedDataModule(Blobs(), Consecutive(), held_out_clients=[7])),
        "has '7', but the clients are: 0, 1, 2",
    ),
    Refusal(
        lambda: fl.FederatedDataModule(Blobs(), Consecutive(), public_share=0.1, held_out_clients=1),
        "'data.public_share' must be 0 if each client ... or with held-out clients, ... but is 0.1",
    ),
    Refusal(
        lambda: fl.FederatedDataModule(
            fl.TableDataModule("t.csv", "y", kind="classification"), Consecutive(), held_out_clients=1
        ),
        "'data.datamodule.standardize' must be false with held-out clients",
    ),
    Refusal(set_up(opened), "'data.held_out_clients' must be off, but is 1. The clients' examples are read when the clients"),
    Refusal(
        lambda: trainer(
            1, fl.FederatedOrchestrator(client_evaluation=fl.ClientEvaluation(1, "val_acc", personal_epochs=1))
        ).fit(Plain(), held_out(["b"], val=TensorDataset(*blobs(9, 2)))),
        "the clients have no test parts",
    ),
]
