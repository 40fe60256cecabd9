"""Objects in a module's attributes that its clients share: a change is announced, once, and nothing else is."""

from __future__ import annotations

import copy
import itertools
import threading
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from federations import Consecutive, Plain, federate
from torch import Tensor, nn

from fl_lightning import LocalTraining
from fl_lightning.clients.isolation import shared_objects


class Augmentation:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.calls = 0

    def __call__(self) -> float:
        return float(self.rng.normal())


class Average:
    """A moving average beside the module."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.shadow = [parameter.detach().clone() for parameter in network.parameters()]

    def __call__(self) -> None:
        for mine, theirs in zip(self.shadow, self.network.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)


@dataclass(frozen=True)
class Count:
    steps: int = 0


class Holder(Plain):
    """Changes a helper in each step, as told."""

    def __init__(self, make: Any, change: Any) -> None:
        super().__init__()
        self.helper = make(self)
        CHANGE[:] = [change]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        CHANGE[0](self)
        return super().training_step(batch, batch_idx)


CHANGE: list[Any] = []


def count(module: Any) -> None:
    module.helper = replace(module.helper, steps=module.helper.steps + 1)


def follow(module: Any) -> None:
    for mine, theirs in zip(module.helper[0].parameters(), module.net.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.1)


CHANGING = {
    "Augmentation": (lambda m: Augmentation(), lambda m: m.helper()),
    "Average": (lambda m: Average(m.net), lambda m: m.helper()),
    "Count": (lambda m: Count(), count),
    "cycle": (lambda m: itertools.cycle([1, 2, 3]), lambda m: next(m.helper)),
    "list": (lambda m: [copy.deepcopy(m.net).requires_grad_(False)], follow),
    "dict": (lambda m: {"first": Augmentation()}, lambda m: m.helper["first"]()),
}


def fit(holder: Holder) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        federate(holder, 2, local=LocalTraining(), partitioner=Consecutive([10, 15]))
    return [str(one.message) for one in found if "Training changed" in str(one.message)]


@pytest.mark.parametrize("kind", CHANGING)
def test_an_object_that_training_changes_is_announced_once(kind):
    (said,) = fit(Holder(*CHANGING[kind]))
    assert said.startswith(
        f"Training changed 'helper' ({kind}) of Holder, which all clients of a process share. If it is more "
    )


def create(module: Any) -> None:
    if module.helper is None:
        module.helper = Augmentation()
    module.helper.calls += 1


def test_an_object_that_training_creates_is_followed_from_the_second_turn_on():
    class Lazy(Holder):
        def __init__(self) -> None:
            super().__init__(lambda m: None, create)
            del self.helper

        helper = None

    (said,) = fit(Lazy())
    assert said.startswith("Training changed 'helper' (Augmentation) of Lazy, which all clients of a process share.")


class Unreadable:
    def __init__(self) -> None:
        self.lock, self.calls = threading.Lock(), 0


def add(module: Any) -> None:
    module.helper.calls = getattr(module.helper, "calls", 0) + 1


def nothing(module: Any) -> None:
    """Leave the helper alone."""


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda m: Augmentation(), nothing),
        (lambda m: Average(m.net), nothing),  # what it refers to is the module's own
        (lambda m: print, nothing),
        (lambda m: Unreadable(), add),  # cannot be told
        (
            lambda m: {"first": torch.Generator(), "second": [np.random.default_rng(0)]},
            lambda m: m.helper["second"][0].normal(),
        ),
    ],
)
def test_nothing_is_said_of_objects_that_stay_and_of_generators(make, change):
    assert not fit(Holder(make, change))


def test_a_large_object_counts_as_data(monkeypatch):
    monkeypatch.setattr(shared_objects, "_LARGEST", 100)
    assert not fit(Holder(lambda m: Augmentation(), lambda m: m.helper()))
