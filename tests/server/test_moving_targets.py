"""Frozen tensors that training changes: targets that follow the network, as in BYOL and MoCo."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_runs import Collect
from federations import SIZES, Blobs, Consecutive, Plain, federate, network, same_bits, weights
from plain_training import distance_from_plain
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import (
    CosineFilter,
    FedAvgM,
    FedCyclic,
    Focus,
    GeometricMedian,
    Krum,
    LocalTraining,
    Mediators,
    RingFed,
    WeightedAverage,
)

DECAY = 0.8


class Following(Plain):
    """A target that follows the network by EMA, and that the loss reads; changed through ``.data``, as lightly does."""

    evaluates = False

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.still = torch.nn.Linear(2, 2).requires_grad_(False)
        if self.evaluates:
            self.target.eval()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y) + F.mse_loss(self.net(x), self.target(x))
        for own, followed in zip(self.target.parameters(), self.net.parameters(), strict=True):
            own.data = own.data * DECAY + followed.data * (1 - DECAY)
        return loss


class Resting(Following):
    """Its target is in evaluation mode, so that it looks like a frozen backbone."""

    evaluates = True


class OneMoves(Following):
    """Only the client with 4 batches moves its target."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        before = [p.data.clone() for p in self.target.parameters()]
        loss = super().training_step(batch, batch_idx)
        if self.trainer.num_training_batches != 4:
            for own, value in zip(self.target.parameters(), before, strict=True):
                own.data = value
        return loss


@pytest.mark.parametrize(("make", "engine"), [(Following, "trainer"), (Resting, "fabric")])
def test_one_client_is_plain_training(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


@pytest.mark.parametrize("make", [Following, Resting, OneMoves])
def test_targets_are_averaged_with_the_strategys_weights_and_set(make):
    """Against each client trained alone by hand; the server's momentum does not reach the target."""
    torch.manual_seed(1)
    module = make()
    start = copy.deepcopy(module)
    sent = Collect()
    federate(module, 1, sent, data=Blobs(shuffle=False), strategy=FedAvgM(0.9, lr=0.5), local=LocalTraining())
    x, y = Blobs().train
    total, expected = sum(SIZES), {name: torch.zeros_like(p) for name, p in start.target.named_parameters()}
    for own_x, own_y in zip(x.split(SIZES), y.split(SIZES), strict=True):
        client = copy.deepcopy(start)
        optimizer = torch.optim.SGD(client.net.parameters(), lr=0.1)
        moves = make is not OneMoves or len(own_y) == 20
        for batch_x, batch_y in zip(own_x.split(5), own_y.split(5), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(client.net(batch_x), batch_y) + F.mse_loss(client.net(batch_x), client.target(batch_x))
            if moves:
                for own, followed in zip(client.target.parameters(), client.net.parameters(), strict=True):
                    own.data.mul_(DECAY).add_(followed.data, alpha=1 - DECAY)
            loss.backward()
            optimizer.step()
        for name, parameter in client.target.named_parameters():
            expected[name] += len(own_y) / total * parameter.detach()
    for name, parameter in module.target.named_parameters():
        assert torch.allclose(parameter, expected[name], atol=1e-6)
        assert not torch.equal(parameter, dict(start.target.named_parameters())[name])
    assert same_bits(weights(module.still), weights(start.still))
    size = sum(p.numel() * p.element_size() for p in module.target.parameters())
    up = {u.num_examples: u.bytes_up for u in sent.updates}
    assert up[20] - up[7] == (size if make is OneMoves else 0)


class Faint(WeightedAverage):
    """FedAvg with a common factor on its weights."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def largest_weight(self, examples: Any) -> float:
        return 1.0

    def weight(self, update: Any) -> float:
        return update.num_examples * self.factor


def test_targets_do_not_depend_on_a_common_factor_of_the_weights():
    """With 2**-70, every weight is below the absolute grid of 2**-62."""
    ends = []
    for factor in (1.0, 2.0**-70):
        torch.manual_seed(1)
        module = OneMoves()
        federate(module, 1, data=Blobs(shuffle=False), strategy=Faint(factor), local=LocalTraining())
        ends.append(weights(module))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("route", "turns"), [(FedCyclic(), 3), (Mediators(3), 3), (RingFed(1), 1)])
def test_models_that_pass_between_clients_take_their_targets_along(route, turns):
    """On a chain over equal clients, the target has followed through all of them."""

    class Counts(Following):
        """Its target counts steps."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = Plain.training_step(self, batch, batch_idx)
            for own in self.target.parameters():
                own.data = own.data + 1
            return loss

    module = Counts()
    before = module.target[0].bias.clone()
    sizes = [10, 10, 10]
    federate(module, 2, data=Blobs(30), partitioner=Consecutive(sizes), local=LocalTraining(), route=route)
    assert torch.allclose(module.target[0].bias - before, torch.tensor(2.0 * 2 * turns))


class Copies(Following):
    """Its target copies the network after each step, so that both are averaged alike if the weights are the same."""

    def on_train_batch_end(self, *_: Any) -> None:
        for own, followed in zip(self.target.parameters(), self.net.parameters(), strict=True):
            own.data = followed.data.clone()


class NoWeights(WeightedAverage):
    """Gives every client the weight 0, so that each counts as 1."""

    def weight(self, update: Any) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("make", "memory_limit"),
    [(lambda: Krum(0), 4.0), (lambda: CosineFilter(-1.0), 0.0), (GeometricMedian, 0.0), (Focus, 4.0), (NoWeights, 4.0)],
)
def test_targets_have_the_weights_of_strategies_that_see_all_models(make, memory_limit):
    module = Copies()
    before = weights(module.target)
    federate(module, 2, strategy=make(), local=LocalTraining(), memory_limit=memory_limit)
    for name, own in module.target.named_parameters():
        assert torch.allclose(own, dict(module.net.named_parameters())[name], atol=1e-6)
        assert not torch.equal(own, before[name])


def test_periods_mix_targets_like_weights():
    """With targets that copy the network after each step, both are mixed and averaged alike."""
    module = Copies()
    federate(module, 2, route=RingFed(2, 0.8), local=LocalTraining())
    for own, followed in zip(module.target.parameters(), module.net.parameters(), strict=True):
        assert torch.allclose(own, followed, atol=1e-6)


def test_nothing_is_sent_for_what_stays():
    sent = Collect()
    module = Plain()
    module.backbone = network().requires_grad_(False)
    federate(module, 2, sent, local=LocalTraining())
    alone = Collect()
    federate(Plain(), 2, alone, local=LocalTraining())
    assert [u.bytes_up for u in sent.updates] == [u.bytes_up for u in alone.updates]
