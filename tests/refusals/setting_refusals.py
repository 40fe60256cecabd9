"""Values of settings, and what algorithms, routes and partitions need of a federation."""

from __future__ import annotations

from typing import Any

import torch
from engine_runs import optimized
from federations import Blobs, Plain, changed, trainer
from refusing import Refusal, fitting
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl


def locally(words: str, **setting: Any) -> Refusal:
    """Return a row on a setting of local training, whose name the words follow."""
    (name,) = setting
    return Refusal(lambda: fl.LocalTraining(**setting), f"'federation.local.{name}' {words}")


def data(words: str, partitioner: Any = None, error: Any = fl.DataError, **settings: Any) -> Refusal:
    """Return a row on a federation's data of 40 examples with three classes."""
    divided = partitioner or fl.IIDPartitioner(3)
    run = trainer(1, fl.FederatedOrchestrator())
    return Refusal(lambda: run.fit(Plain(), fl.FederatedDataModule(Blobs(), divided, **settings)), words, error)


def partly(words: str, share: float, what: str = "keep", epochs: int = 2) -> Refusal:
    """Return a row on clients that do a part of their work."""
    return Refusal(
        lambda: fitting(local=fl.LocalTraining(max_epochs=epochs, partial_work=fl.PartialWork(share, what)))(), words
    )


ADADELTA, ADAM = optimized(torch.optim.Adadelta), optimized(torch.optim.Adam)
NO_VAL = {"flags": {"limit_val_batches": 0}}
BY_ITSELF = "needs each client to train by itself from the global"
UNLABELLED = changed("train", DataLoader(TensorDataset(torch.zeros(40, 4), torch.rand(40, 2)), batch_size=5))

REFUSALS = [
    locally("must be 1 or above", max_epochs=-1),
    locally("must be 0 or above, but is -1", proximal_mu=-1.0),
    locally("must be above 0 and at most 1", lr_decay=0.0),
    locally("must be above 0, or null", gradient_clip_val=0.0),
    locally("must be a number of 1 or above", limit_train_batches=0),
    locally("must be 1 or above, or null", threads=0),
    locally("must be 1 or above, or -1", max_steps=0),
    locally("must be 1 or above", accumulate_grad_batches=0),
    Refusal(lambda: fl.Yogi([torch.zeros(1, requires_grad=True)], lr=0), "'Yogi.lr' must"),
    Refusal(lambda: fl.ClassificationTask(Plain().net, 5, fl.F1WeightedCrossEntropy(10)), "'model.loss.num_classes' must be"),
    # data
    data("41 clients cannot share 40 examples", fl.IIDPartitioner(41)),
    data("10 clients with at least 5 examples each need 50, but there are only", fl.DirichletPartitioner(10, min_examples=5)),
    data("Lower 'data.partitioner.min_examples' or 'num_clients', or raise", fl.DirichletPartitioner(8, 1e-3, min_examples=4)),
    data("Set 'data.partitioner.classes_per_client' to a number from 1 to 3", fl.ClassesPartitioner(3, 4)),
    data("cannot be cut into ... shards", fl.ShardPartitioner(40)),
    data("has no column 'domains': an attribute ... of its 40 examples", fl.DomainPartitioner()),
    data("which leaves client ... no examples to train on", client_validation=0.999),
    data("examples of each class, but class", public_share=0.999),
    # what strategies need
    Refusal(fitting(strategy=fl.FedLoss()), "evaluates each client's model on the client's own validation part, but clients"),
    Refusal(fitting(strategy=fl.ShapleyValues("val_acc"), **NO_VAL), "needs val_acc on the server's validation set, but the"),
    Refusal(fitting(strategy=fl.Focus(), **NO_VAL), "needs val_loss on the server's validation set, but the server has none"),
    Refusal(fitting(strategy=fl.FedNova(), module=ADADELTA), "FedNova does not support the clients' optimizer, Adadelta. It"),
    Refusal(fitting(strategy=fl.FedNova(), module=ADAM), "does not support the clients' optimizer, Adam."),
    Refusal(fitting(strategy=fl.Scaffold(), module=ADADELTA), "SCAFFOLD is defined for plain SGD with one learning rate, but"),
    Refusal(fitting(strategy=fl.Scaffold(), module=lambda: Plain(momentum=0.9)), "but the clients train with SGD with"),
    Refusal(
        fitting(strategy=fl.FedSGD(), local=fl.LocalTraining(full_batch=True, max_epochs=2)),
        "one gradient per client, but client 1",
    ),
    Refusal(fitting(strategy=fl.FedAvgM(), server_optimizer=torch.optim.Adam), "FedAvgM has its own server optimizer"),
    # routes
    *(
        Refusal(fitting(route=route, clients_per_round=2), f"{type(route).__name__} needs every client in every round, but thi")
        for route in (fl.FedCyclic(), fl.FedStar(2, "val_acc"), fl.RingFed(), fl.LocalOnly("val_acc"), fl.WarmStart(1))
    ),
    Refusal(fitting(route=fl.FedStar(2, "val_acuracy")), "The metric for models is 'val_acuracy', ... Did you mean val_acc"),
    Refusal(fitting(route=fl.FedCyclic(), strategy=fl.FedMedian()), "FedCyclic sends a single model to the server, so "),
    Refusal(fitting(route=fl.LocalOnly("val_acc"), strategy=fl.AdaFed("val_acc")), "LocalOnly sends a single model to the"),
    Refusal(fitting(route=fl.RingFed(), strategy=fl.FedNova()), f"FedNova {BY_ITSELF}"),
    Refusal(fitting(route=fl.Mediators(2), strategy=fl.Scaffold()), f"Scaffold {BY_ITSELF}"),
    Refusal(fitting(route=fl.Mediators(2), data=UNLABELLED), "Mediators groups clients by their label counts,", fl.DataError),
    # clients
    partly("'federation.local.max_epochs' must be 2 or above, since 'partial_work'", 0.5, epochs=1),
    partly("must be a share that leaves at least one of the round's 3 clients, but is 1.0", 1.0, "drop"),
    Refusal(lambda: fl.Attackers({1: 1.5}), "'federation.attackers.wrong_labels.1' must be a share from 0 to 1"),
    Refusal(fitting(attackers=fl.Attackers({3: 1.0})), "'federation.attackers.wrong_labels' must be clients from 0 to 2"),
    Refusal(fitting(attackers=fl.Attackers({}, [0, 9])), "'federation.attackers.discard_global' must be clients from 0 to 2"),
]
