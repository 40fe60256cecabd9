"""Run a case through this package: a LightningModule that is federated by the callback, as a user would do it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import torch
from common import Case, Net, Result, Vector, entries, network, norm_entries, vector
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fl_lightning as fl

Settings = dict[str, Any]
_HEAD = [fl.PersonalPart(names="net.head.*")]
_NORM = [fl.PersonalPart(modules="torch.nn.BatchNorm1d")]


def _optimizer(kind: Any) -> Callable[[Settings], Settings]:
    def settings(s: Settings) -> Settings:
        rates = {"lr": s["server_lr"], "betas": (s["beta_1"], s["beta_2"]), "eps": s["tau"]}
        return {"strategy": fl.FedAvg(), "server_optimizer": lambda parameters: kind(parameters, **rates)}

    return settings


def _buffered(s: Settings) -> Settings:
    return {
        "strategy": fl.FedBuff(lr=s["server_lr"], weighting="uniform"),
        "asynchronous": fl.Asynchronous(concurrency=s["concurrency"], buffer=s["buffer"]),
        "availability": fl.Availability(clock=fl.Clock(between_clients="lognormal")),
    }


FEDERATIONS: dict[str, Callable[[Settings], Settings]] = {
    "FedAvg": lambda s: {"strategy": fl.FedAvg()},
    "FedAvgM": lambda s: {"strategy": fl.FedAvgM(s["momentum"], lr=s["server_lr"])},
    "FedProx": lambda s: {"strategy": fl.FedAvg(s["weighting"])},
    "SCAFFOLD": lambda s: {"strategy": fl.Scaffold()},
    "FedNova": lambda s: {"strategy": fl.FedNova()},
    "FedDyn": lambda s: {"strategy": fl.FedDyn(s["alpha"])},
    "MOON": lambda s: {"strategy": fl.MOON("net.encoder", s["mu"], s["temperature"])},
    "Ditto": lambda s: {"strategy": fl.Ditto(s["strength"])},
    "FedRep": lambda s: {"strategy": fl.FedRep(head_epochs=1), "personal": _HEAD},
    "FedBN": lambda s: {"strategy": fl.FedAvg(), "personal": _NORM},
    "APFL": lambda s: {"strategy": fl.APFL(s["alpha"], weighting="uniform")},
    "pFedMe": lambda s: {"strategy": fl.PFedMe(s["strength"], s["steps"], s["rate"], s["beta"])},
    "q-FedAvg": lambda s: {"strategy": fl.QFedAvg(s["q"], s["lr"])},
    "FedAdam": _optimizer(torch.optim.Adam),
    "FedAdagrad": lambda s: {"strategy": fl.FedAdagrad(s["server_lr"], s["tau"])},
    "FedYogi": _optimizer(fl.Yogi),
    "FedBuff": _buffered,
    "Krum": lambda s: {"strategy": fl.Krum(s["attackers"], s["selected"])},
    "multi-Krum": lambda s: {"strategy": fl.Krum(s["attackers"], s["selected"])},
    "trimmed mean": lambda s: {"strategy": fl.TrimmedMean(s["attackers"])},
    "median": lambda s: {"strategy": fl.FedMedian()},
}


class Classifier(L.LightningModule):
    def __init__(self, net: Net, lr: float) -> None:
        super().__init__()
        self.net, self.lr = net, lr

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), batch_size=len(batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Record(fl.FederationCallback):
    """Who took part in each round, and the weights after it."""

    def __init__(self) -> None:
        self.weights: list[Vector] = []
        self.cohorts: list[list[int]] = []
        self.staleness: list[list[int]] = []

    def on_aggregated(self, trainer: L.Trainer, pl_module: Any, updates: list[fl.ClientUpdate]) -> None:
        self.cohorts.append([update.client for update in updates])
        self.staleness.append([update.staleness or 0 for update in updates])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.weights.append(vector(pl_module.net))


def _own(case: Case, federation: fl.FederatedOrchestrator) -> dict[int, Vector] | None:
    """The clients' own models, or their personal parts, by client."""
    memory, own = federation._run.memory, {}
    for client in sorted({client for cohort in case.cohorts for client in cohort}):
        if (model := memory.last_model(client)) is not None:
            own[client] = model.vector.numpy()
        elif held := memory.held(client):
            tensors = [held[f"net.{name}"] for name in network(case).state_dict() if f"net.{name}" in held]
            own[client] = np.concatenate([t.numpy().ravel() for t in tensors if t.is_floating_point()])
    return own or None


def shared_entries(case: Case) -> Vector:
    """Which weights the server averages: all but the personal ones."""
    return entries(case, "encoder.") if case.algorithm == "FedRep" else ~norm_entries(case)


def run(case: Case, rounds: int, cohort: int) -> tuple[Case, Result]:
    """Return the case with its cohorts, and the weights after each round."""
    settings = FEDERATIONS[case.algorithm](case.settings)
    if "asynchronous" not in settings:
        settings["clients_per_round"] = cohort
    local = fl.LocalTraining(max_epochs=case.settings["epochs"], proximal_mu=case.settings.get("proximal_mu", 0.0))
    federation, record = fl.FederatedOrchestrator(local=local, **settings), Record()
    clients = {f"{k:02}": TensorDataset(*case.examples(k)) for k in range(len(case.sizes))}
    batch = case.settings["batch"]
    data = fl.FederatedDataModule.from_clients(clients, val=clients["00"], batch_size=batch, shuffle=False)
    with tempfile.TemporaryDirectory() as folder:
        off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        flags: Settings = {"accelerator": "cpu", "precision": "64-true", "default_root_dir": folder, **off}
        trainer = L.Trainer(max_epochs=rounds, callbacks=[federation, record], **flags)
        trainer.fit(Classifier(network(case), case.lr), data)
    case = replace(case, cohorts=record.cohorts, staleness=record.staleness)
    shared = shared_entries(case)
    return case, Result([weights[shared] for weights in record.weights], _own(case, federation))
