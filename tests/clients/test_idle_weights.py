"""Weights whose gradient is exactly 0 stay where they are: Adam would enlarge any residue of rounding to a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algorithms import SIZES
from federations import Blobs, Consecutive, Plain, trainer
from torch import Tensor, nn

from fl_lightning import (
    AFL,
    APFL,
    MOON,
    AdaFed,
    Asynchronous,
    Ditto,
    FedAdagrad,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedCyclic,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    FedExP,
    FedLoss,
    FedMedian,
    FedNova,
    FedStar,
    Focus,
    GeometricMedian,
    Krum,
    LocalTraining,
    PFedMe,
    QFedAvg,
    Quantize,
    RingFed,
    Scaffold,
    SecureAggregation,
    ShapleyValues,
    TopK,
    TrimmedMean,
    Yogi,
)


class Idle(Plain):
    """Has weights that its loss ignores, and that plain Adam therefore leaves alone."""

    adam = True

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.randn(200) * 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + 0.0 * self.idle.sum()

    def configure_optimizers(self) -> Any:
        kind = torch.optim.Adam if self.adam else torch.optim.SGD
        return kind(self.parameters(), lr=0.05)


class IdleSGD(Idle):
    adam = False


CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "uniform": {"strategy": FedAvg("uniform")},
    "fedavgm": {"strategy": FedAvgM(0.9)},
    "fedadam": {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.05)},
    "fedyogi": {"server_optimizer": lambda p: Yogi(p, lr=0.05)},
    "fedadagrad": {"strategy": FedAdagrad()},
    "fedprox": {"local": {"proximal_mu": 0.3}},
    "fednova": {"strategy": FedNova(), "module": IdleSGD},
    "scaffold": {"strategy": Scaffold(), "module": IdleSGD},
    "feddyn": {"strategy": FedDyn(0.1)},
    "fedexp": {"strategy": FedExP()},
    "qfedavg": {"strategy": QFedAvg()},
    "afl": {"strategy": AFL(1.0)},
    "adafed": {"strategy": AdaFed("val_acc", power=2)},
    "fedloss": {"strategy": FedLoss(), "held_back": 0.4},
    "focus": {"strategy": Focus()},
    "shapley": {"strategy": ShapleyValues("val_acc")},
    "median": {"strategy": FedMedian()},
    "trimmed": {"strategy": TrimmedMean(1)},
    "krum": {"strategy": Krum(1, selected=2)},
    "geometric": {"strategy": GeometricMedian()},
    "ditto": {"strategy": Ditto(0.5)},
    "pfedme": {"strategy": PFedMe(2.0, 3, 0.2, 0.5)},
    "apfl": {"strategy": APFL(0.5, 0.1)},
    "moon": {"strategy": MOON("net.0", 2.0)},
    "ringfed": {"route": RingFed(2, 0.8)},
    "fedcyclic": {"route": FedCyclic()},
    "fedstar": {"route": FedStar(2, "val_acc")},
    "topk": {"transforms": [TopK(0.3)]},
    "quantized": {"transforms": [Quantize(4, 16)]},
    "secure": {"secure_aggregation": SecureAggregation()},
    "fedbuff": {"strategy": FedBuff(0.9, 0.5), "asynchronous": Asynchronous(4, 2)},
    "fedasync": {"strategy": FedAsync(a=0.3), "asynchronous": Asynchronous(0.8)},
}


@pytest.mark.parametrize("name", CASES)
def test_weights_without_a_gradient_stay(name):
    settings = dict(CASES[name])
    torch.manual_seed(4)
    module = settings.pop("module", Idle)()
    before = module.idle.detach().clone()
    data = FederatedDataModule(Blobs(n=sum(SIZES)), Consecutive(SIZES), client_validation=settings.pop("held_back", 0.0))
    federation = FederatedOrchestrator(local=LocalTraining(**settings.pop("local", {})), **settings)
    trainer(2, federation).fit(module, data)
    assert torch.equal(module.idle.detach(), before)
