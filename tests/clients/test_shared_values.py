"""State that clients share, in classes and in objects that are no part of the module: a change is named once."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import built
from federations import Consecutive, Plain, federate
from torch import Tensor, nn

from fl_lightning import LocalTraining


class Augmentation:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return float(self.rng.normal())


class Average:
    """A moving average beside the module."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.followed = network, list(network.parameters())
        self.shadow = [parameter.detach().clone() for parameter in network.parameters()]

    def __call__(self) -> None:
        for mine, theirs in zip(self.shadow, self.network.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)


def changing(change: Any, make: Any = lambda module: None, **values: Any) -> Plain:
    """A module that holds a helper, and changes it or a value of its class in each step."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        change(self)
        return Plain.training_step(self, batch, batch_idx)

    values["sizes"] = {"hidden": [8, 3]}  # a constant, of which nothing is said
    return built(lambda self: setattr(self, "helper", make(self)), training_step=training_step, **values)()


def nothing(module: Any) -> None:
    """Leave the helper alone."""


def follow(module: Any) -> None:
    for mine, theirs in zip(module.helper[0].parameters(), module.net.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.1)


def create(module: Any) -> None:
    type(module).late = [1]


def add(module: Any) -> None:
    type(module).seen += 1


CHANGING = {
    "helper.calls": lambda: changing(lambda m: m.helper(), lambda m: Augmentation()),
    "helper.shadow": lambda: changing(lambda m: m.helper(), lambda m: Average(m.net)),
    "helper.0.parameters": lambda: changing(follow, lambda m: [copy.deepcopy(m.net).requires_grad_(False)]),
    "Loss.history": lambda: changing(lambda m: m.helper.history.append(1), lambda m: type("Loss", (), {"history": []})()),
    "Variant.seen": lambda: changing(add, seen=0),
    "Variant.late": lambda: changing(create),
}


def told(module: Plain) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        federate(module, 2, local=LocalTraining(), partitioner=Consecutive([10, 15]))
    return [str(one.message) for one in found if "Training changed" in str(one.message)]


@pytest.mark.parametrize("name", CHANGING)
def test_what_training_changes_is_named_once(name):
    (said,) = told(CHANGING[name]())
    assert said.startswith(f"Training changed '{name}' of Variant, which all clients of a process share, because")


def test_it_is_the_users_own():
    """No turn restores it: two clients of two and three batches in two rounds."""
    module = CHANGING["Variant.seen"]()
    told(module)
    assert type(module).seen == 10


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda m: Augmentation(), nothing),
        (lambda m: Average(m.net), nothing),  # what it refers to is the module's own
        (lambda m: None, lambda m: setattr(m, "own", Augmentation())),  # each turn makes its own
        (
            lambda m: {"first": torch.Generator(), "second": [np.random.default_rng(0)]},
            lambda m: m.helper["second"][0].normal(),
        ),
    ],
)
def test_nothing_is_said_of_what_stays_and_of_generators(make, change):
    assert not told(changing(change, make))
