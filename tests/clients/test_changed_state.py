"""What training changes in optimizers and modules: each client goes on from what it changed itself, or is refused."""

from typing import Any

import pytest
import torch
from engine_runs import ONE_ENOUGH, scheduled, variant
from federations import Blobs, Consecutive, Plain, federate
from lightning.pytorch.utilities.types import LRSchedulerConfig
from plain_training import client_by_client, distance_from_plain, federated_weights
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from fl_lightning import LocalTraining
from fl_lightning.errors import ConfigurationError


def test_settings_that_training_changed_are_scaled_once_by_the_decay_of_the_round():
    rates: list[float] = []

    def halves(self: Any) -> None:
        (group,) = self.optimizers().param_groups
        rates.append(group["lr"])
        if self.current_epoch == 1:
            group["lr"] /= 2

    local = LocalTraining(lr_decay=0.5, optimizer_state="kept")
    make = variant(on_train_epoch_start=halves)
    federate(make(lr=0.8), 4, data=Blobs(10), partitioner=Consecutive([10]), local=local)
    assert rates == pytest.approx([0.8, 0.4, 0.1, 0.05])


class ThawsOnce(Plain):
    """As in Lightning's own finetuning: another group from the second epoch on."""

    def configure_optimizers(self) -> Any:
        self.net[0].requires_grad_(False)
        return SGD(self.net[2].parameters(), 0.1)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.net[0].parameters())})


class ReplacesOnce(Plain):
    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers = [SGD(self.parameters(), 0.01)]


class SchedulesOnce(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 5:
            self.trainer.lr_scheduler_configs.append(LRSchedulerConfig(StepLR(self.optimizers().optimizer, 1, 0.1)))


@pytest.mark.parametrize(
    ("make", "engine"),
    [(ThawsOnce, "trainer"), (ThawsOnce, "fabric"), (ReplacesOnce, "trainer"), (SchedulesOnce, "trainer")],
)
def test_other_optimizers_in_the_middle_of_a_training_are_refused(make, engine):
    """The next turn would begin without them; where each turn is a training of its own, it is plain training."""
    settings: dict[str, Any] = {"engine": engine, "optimizer_state": "kept", "max_epochs": 1}
    said = rf"{make.__name__} or a callback .* 'trainer.optimizers' or their schedules .* those of 'configure_optimizers'"
    with pytest.raises(ConfigurationError, match=said):
        federated_weights(make, 3, torch.float64, {}, **settings)
    assert distance_from_plain(make, engine, rounds=1, epochs=3, progress="round") < 1e-12


class Hooks(Plain):
    """Hooks of parts and parameters from the start of training on."""

    def on_fit_start(self) -> None:
        self.net[0].weight.register_hook(lambda gradient: gradient * 0.5)
        self.net[2].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", parameter.grad / 2))

    def on_train_start(self) -> None:
        if self.current_epoch == 0:
            self.net[0].register_forward_hook(lambda part, given, output: output * 1.5)


@pytest.mark.parametrize("engine", ONE_ENOUGH)
def test_no_client_finds_hooks_of_another(engine):
    assert client_by_client(Hooks, engine=engine) < 1e-12


STEPPED = scheduled(lambda o: StepLR(o, 1, 0.9), interval="step")
"""Has a rate that depends on the number of steps, of which each epoch has five."""


def accumulates_later(self: Any) -> None:
    self.trainer.accumulate_grad_batches = 1 + (self.current_epoch > 1)


def cuts_later(self: Any, batch: Any, batch_idx: int) -> Any:
    return -1 if self.current_epoch > 1 and batch_idx == 3 else None


@pytest.mark.parametrize(
    ("methods", "engine"),
    [
        ({"on_train_epoch_start": accumulates_later}, "trainer"),
        pytest.param({"on_train_batch_start": cuts_later}, "trainer", marks=pytest.mark.slow),
        ({"on_train_batch_start": cuts_later}, "fabric"),
    ],
)
def test_other_numbers_of_steps_than_planned_are_refused(methods, engine):
    """A client's place in the whole training is computed from the planned steps: schedules would have wrong rates."""
    make = variant(STEPPED, **methods)
    said = "Variant has made 3 steps by the end of epoch 2, where 5 of .* 'federation.local.accumulate_grad_batches'"
    with pytest.raises(ConfigurationError, match=said):
        distance_from_plain(make, engine, rounds=4)
    assert distance_from_plain(make, engine, rounds=1, epochs=4, progress="round") < 1e-12


@pytest.mark.parametrize("engine", ONE_ENOUGH)
def test_a_turn_that_is_stopped_in_an_epoch_has_fewer_steps(engine):
    """Its turn ends, not its training: it goes on where the turn was planned to end."""
    stops = variant(
        STEPPED, on_train_batch_end=lambda self, outputs, batch, batch_idx: setattr(self.trainer, "should_stop", batch_idx == 2)
    )
    assert federate(stops(), 2, local=LocalTraining(engine=engine)).global_step == 2


def test_a_layer_without_weights_that_training_replaces_is_that_of_the_start_in_the_next_turn():
    kinds: list[str] = []

    def replaces(self: Any) -> None:
        kinds.append(type(self.net[1]).__name__)
        self.net[1] = nn.ReLU(inplace=True)

    with pytest.warns(UserWarning, match=r"Training changed 'net.1' of Variant"):
        federate(variant(on_train_epoch_start=replaces)(), 2, local=LocalTraining())
    assert kinds == ["Tanh"] * 6
