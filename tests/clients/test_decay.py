"""``lr_decay`` multiplies the rate that a schedule gives, whatever the schedule: against the schedule alone in torch."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import lightning as L
import pytest
import torch
from engine_runs import tier_1
from federations import Blobs, Consecutive, federate
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler, swa_utils

from fl_lightning import LocalTraining
from fl_lightning.errors import ConfigurationError

DECAY, ROUNDS, EPOCHS, STEPS = 0.5, 4, 2, 5
SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 7], 0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.2, 6),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 0.8, 9),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.05)], [4]
    ),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 45, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.08),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.02)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.7, patience=1, min_lr=0.03),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.02, 0.2, step_size_up=4, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2, eta_min=0.06),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.4, total_steps=50, cycle_momentum=False),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=6),
    "a class of one's own": lambda o: Warmup(o),
}


class Warmup(lr_scheduler.LRScheduler):
    """Rises from a floor of its own."""

    def get_lr(self) -> list[float]:
        return [0.01 + base * self.last_epoch / 30 for base in self.base_lrs]


class Constant(L.LightningModule):
    """Its gradient is 1, so a turn moves the weight by the sum of the rates."""

    def __init__(self, make: Callable[[Optimizer], Any], interval: str, manual: bool) -> None:
        super().__init__()
        self.make, self.interval = make, interval
        self.automatic_optimization = not manual
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = self.weight.sum()
        if self.automatic_optimization:
            self.log("level", 1.0, on_step=True, on_epoch=False)
            return loss
        self.manual_backward(loss)
        self.optimizers().step()
        self.lr_schedulers().step()
        assert self.lr_schedulers().get_last_lr() == [self.optimizers().param_groups[0]["lr"]]
        self.optimizers().zero_grad()
        return None

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([self.weight], lr=0.1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.make(optimizer), "interval": self.interval, "monitor": "level"},
        }


def alone(make: Callable[[Optimizer], Any], interval: str) -> list[float]:
    """The rate of each step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=0.1)
    schedule, rates = make(optimizer), []
    for step in range(ROUNDS * EPOCHS * STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if interval == "step" or (step + 1) % STEPS == 0:
            schedule.step(*([1.0] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
    return rates


def moved(make: Callable[[Optimizer], Any], interval: str = "step", manual: bool = False, **local: Any) -> list[float]:
    """The sum of the rates of each round."""
    weights = [0.0]
    watch = LambdaCallback(on_train_epoch_end=lambda _, module: weights.append(float(module.weight.detach())))
    federate(
        Constant(make, interval, manual),
        ROUNDS,
        watch,
        data=Blobs(n=5 * STEPS),
        partitioner=Consecutive([5 * STEPS]),
        local=LocalTraining(max_epochs=EPOCHS, lr_decay=DECAY, **local),
        flags={"precision": "64-true", "limit_val_batches": 0},
    )
    return [before - after for before, after in pairwise(weights)]


def expected(rates: list[float]) -> list[float]:
    turn = EPOCHS * STEPS
    return [DECAY**r * sum(rates[r * turn : (r + 1) * turn]) for r in range(ROUNDS)]


def test_every_schedule_of_torch_is_here():
    of_torch = {name for name, kind in vars(lr_scheduler).items() if inspect.isclass(kind) and not name.startswith("_")}
    assert {name for name in of_torch if name.endswith(("LR", "Restarts", "Plateau", "ChainedScheduler"))} <= {*SCHEDULES}


SOME = ("CosineAnnealingLR", "ReduceLROnPlateau", "SWALR", "OneCycleLR")


@pytest.mark.parametrize("name", tier_1(SCHEDULES, *SOME))
def test_decay_multiplies_what_the_schedule_gives(name):
    assert moved(SCHEDULES[name]) == pytest.approx(expected(alone(SCHEDULES[name], "step")), rel=1e-9)


@pytest.mark.parametrize(
    "how",
    [{"interval": "epoch"}, {"engine": "fabric"}, {"engine": "stacked"}, {"manual": True, "optimizer_state": "kept"}],
    ids=["by epoch", "fabric", "stacked", "kept"],
)
@pytest.mark.parametrize("name", ["CosineAnnealingLR", pytest.param("SWALR", marks=pytest.mark.slow)])
def test_decay_is_the_same_in_every_engine_and_interval(name, how):
    rates = alone(SCHEDULES[name], how.get("interval", "step"))
    assert moved(SCHEDULES[name], **how) == pytest.approx(expected(rates), rel=1e-9)


class ByFunctions(lr_scheduler.LRScheduler):
    """Computes the rate by a lambda and by a method, which are attributes and so in what ``state_dict`` returns."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.falling, self.rising = lambda n: 0.9**n, self.warmth
        super().__init__(optimizer)

    def warmth(self) -> float:
        return min(1.0, (1 + self.last_epoch) / 15)

    def get_lr(self) -> list[float]:
        return [base * self.falling(self.last_epoch) * self.rising() for base in self.base_lrs]


WITHOUT_METRIC = {name: make for name, make in SCHEDULES.items() if name != "ReduceLROnPlateau"}
QUICK = ("OneCycleLR", "SequentialLR")


@pytest.mark.parametrize("name", tier_1(WITHOUT_METRIC, *QUICK))
def test_clients_keep_schedules_that_manual_optimization_steps(name):
    make = WITHOUT_METRIC[name]
    assert moved(make, manual=True) == pytest.approx(expected(alone(make, "step")), rel=1e-9)


def test_what_a_schedule_keeps_must_be_storable():
    """One that is computed anew from the place in the training may keep anything."""
    said = r"ByFunctions keeps 'falling' \(a function\) from turn to turn, but clients store only tensors, .* 'state_dict', or"
    with pytest.raises(ConfigurationError, match=said):
        moved(ByFunctions, manual=True)
    assert moved(ByFunctions) == pytest.approx(expected(alone(ByFunctions, "step")), rel=1e-9)
