"""Routes, attackers and rebalancing: wrong settings and what they do not go with."""

from __future__ import annotations

from typing import Any

from engine_runs import variant
from federations import Blobs, blobs
from refusing import Refusal, fitting
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fl_lightning as fl


def linear(loss: Any = None) -> fl.RegressionTask:
    return fl.RegressionTask(nn.Linear(4, 1), loss or fl.HalfSquaredError())


def one_class() -> Blobs:
    data = Blobs()
    data.train[1].zero_()
    return data


class Named(Dataset[Any]):
    """Its examples are dictionaries."""

    targets = blobs(40, 1)[1]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index}


NAMED = variant(Blobs, train_dataloader=lambda self: DataLoader(Named(), batch_size=5))

REFUSALS = [
    # Mocha
    Refusal(lambda: fl.Mocha(strength=0.0, l2=0.0), "'federation.route.l2' must be above 0 if 'strength' is 0"),
    Refusal(
        fitting(module=lambda: fl.ClassificationTask(fl.LeNet(1, 28)), route=fl.Mocha()),
        "Mocha is defined only for linear models ... trains 5 layers",
    ),
    Refusal(fitting(module=lambda: linear(fl.RobustLoss(0.0)), route=fl.Mocha()), "Mocha needs a convex loss, but RobustLoss"),
    Refusal(
        fitting(module=linear, route=fl.Mocha(), local=fl.LocalTraining(proximal_mu=0.1)),
        "Set 'federation.local.proximal_mu' to 0",
    ),
    Refusal(
        fitting(module=linear, route=fl.Mocha(), local=fl.LocalTraining(engine="stacked")),
        "'federation.local.engine' to trainer, fabric or auto",
    ),
    # wrong labels
    Refusal(fitting(data=one_class(), attackers=fl.Attackers({0: 1.0})), "a single class, so no label can be", fl.DataError),
    Refusal(fitting(data=NAMED(), attackers=fl.Attackers({1: 1.0})), "need the form (input, label, ... but", fl.DataError),
]
