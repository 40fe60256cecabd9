"""FedLab's handlers and serial trainers, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common import Case, Result, Run, main, network, vector
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer, DittoServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler
from fedlab.contrib.algorithm.qfedavg import qFedAvgClientTrainer, qFedAvgServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.server.handler import ServerHandler
from fedlab.utils.aggregator import Aggregators
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Clients(FedDataset):
    def __init__(self, case: Case) -> None:
        self.case = case

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(TensorDataset(*self.case.examples(id)), batch_size=batch_size, shuffle=False)


def federation(
    handler: Any, trainer: Any, at_server: Sequence[str] = (), at_clients: Sequence[str] = (), serial: bool = True
) -> Run:
    """Rounds as FedLab's StandalonePipeline runs them, with given cohorts; settings are passed to ``setup_optim`` by name."""

    def run(case: Case) -> Result:
        count, cohort = len(case.sizes), len(case.cohorts[0])
        server = handler(network(case), len(case.cohorts), cohort / count + 1e-9)
        server.num_clients, server.case = count, case
        client = trainer(network(case), count) if serial else trainer(network(case))
        client.case = case
        client.setup_dataset(Clients(case))
        client.setup_optim(case.settings["epochs"], case.settings["batch"], case.lr, *(case.settings[n] for n in at_clients))
        if type(server).setup_optim is not ServerHandler.setup_optim:
            server.setup_optim(*(case.settings.get(name, 1.0) for name in at_server))  # a global rate of 1
        weights = []
        for number, chosen in enumerate(case.cohorts):
            server.chosen, down = chosen, server.downlink_package
            if serial:
                client.local_process(down, list(chosen))
                packages = client.uplink_package
            else:
                packages = [client.local_process(down, k) or client.uplink_package for k in chosen]
            for package in packages:
                server.load(package)
            assert server.round == number + 1
            weights.append(vector(server.model))
        return Result(weights)

    return run


class WeighedNova(FedNovaServerHandler):
    """p_k = n_k / n, and no factor N / K."""

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        p = torch.as_tensor(self.case.shares(self.chosen))
        deltas = torch.stack([(model - self.model_parameters) / tau for model, tau in buffer])
        self.set_model(self.model_parameters + (p @ torch.cat([tau for _, tau in buffer]).double()) * (p @ deltas))


class WeighedAverage(SyncServerHandler):
    """The aggregator that FedLab has, with weights n_k."""

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        shares = torch.as_tensor(self.case.shares(self.chosen))
        self.set_model(Aggregators.fedavg_aggregate([package[0] for package in buffer], shares))


class SummedChanges(FedDynServerHandler):
    """h moves by the sum of changes, not by the sum of models minus one w_t."""

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        w, models = self.model_parameters, [package[0] for package in buffer]
        self.h = self.h - self.alpha / self.num_clients * sum(model - w for model in models)
        self.set_model(Aggregators.fedavg_aggregate(models) - self.h / self.alpha)


class Regularised(FedDynSerialClientTrainer):
    """The regulariser is differentiable: its parameters are not detached."""

    @property
    def model_parameters(self) -> Tensor:
        return torch.cat([parameter.reshape(-1) for parameter in self._model.parameters()])

    def train(self, id: int, model_parameters: Tensor, train_loader: DataLoader) -> list[Tensor]:
        package = super().train(id, model_parameters, train_loader)
        self.L[id] = self.L[id].detach()
        return [tensor.detach() for tensor in package]


class StartLoss(qFedAvgClientTrainer):
    """F_k is the mean loss of w_t."""

    def local_process(self, payload: list[Tensor], id: int) -> None:
        super().local_process(payload, id)
        self.set_model(payload[0])
        x, y = self.case.examples(id)
        loss = F.cross_entropy(self._model(x), y).item()
        gradient = self.delta / np.float_power(self.summed, self.q)
        self.delta = gradient * loss**self.q
        self.hk = self.q * loss ** (self.q - 1) * gradient.norm() ** 2 + loss**self.q / self.lr

    def train(self, model_parameters: Tensor, train_loader: DataLoader) -> None:
        self.q, q = 1.0, self.q  # with q = 1, delta is the summed loss times the gradient
        super().train(model_parameters, train_loader)
        trained = (model_parameters - self.model_parameters) / self.lr
        self.summed, self.q = (self.delta.norm() / trained.norm()).item(), q
        self.delta = self.delta * self.summed ** (q - 1)


class WithRate(qFedAvgClientTrainer):
    """The class reads ``self.lr``, which its base does not set."""

    def setup_optim(self, epochs: int, batch_size: int, lr: float, q: float) -> None:
        super().setup_optim(epochs, batch_size, lr, q)
        self.lr = lr


RUNS: dict[str, Run] = {
    "FedAvg": federation(SyncServerHandler, SGDSerialClientTrainer),
    "FedProx": federation(FedProxServerHandler, FedProxSerialClientTrainer, (), ["proximal_mu"]),
    "SCAFFOLD": federation(ScaffoldServerHandler, ScaffoldSerialClientTrainer, ["global_lr"]),
    "FedNova": federation(FedNovaServerHandler, FedNovaSerialClientTrainer),
    "FedDyn": federation(FedDynServerHandler, FedDynSerialClientTrainer, ["alpha"], ["alpha"]),
    "q-FedAvg": federation(qFedAvgServerHandler, qFedAvgClientTrainer, (), ["q"], serial=False),
    "Ditto": federation(DittoServerHandler, DittoSerialClientTrainer),
}
CHANGED: dict[str, Run] = {
    "FedAvg": federation(WeighedAverage, SGDSerialClientTrainer),
    "FedNova": federation(WeighedNova, FedNovaSerialClientTrainer),
    "FedDyn": federation(SummedChanges, Regularised, ["alpha"], ["alpha"]),
    "q-FedAvg": federation(qFedAvgServerHandler, type("Both", (StartLoss, WithRate), {}), (), ["q"], serial=False),
}

if __name__ == "__main__":
    main("fedlab", RUNS, CHANGED)
