"""Frozen tensors that training changes: targets that follow the network, as in BYOL and MoCo."""

import copy
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_runs import Collect, variant
from federations import SIZES, Blobs, Consecutive, Plain, federate, network, same_bits, weights
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import (
    ConfigurationError,
    CosineFilter,
    FedAvg,
    FedAvgM,
    FedCyclic,
    Focus,
    GeometricMedian,
    Krum,
    LocalTraining,
    Mediators,
    RingFed,
    Storage,
    WeightedAverage,
)
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.sums import Sums
from fl_lightning.server.aggregate import MovedTensors

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


Resting = variant(Following, evaluates=True)  # its target looks like a frozen backbone


class OneMoves(Following):
    """Only the client with 4 batches moves its target."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        before = [p.data.clone() for p in self.target.parameters()]
        loss = super().training_step(batch, batch_idx)
        if self.trainer.num_training_batches != 4:
            for own, value in zip(self.target.parameters(), before, strict=True):
                own.data = value
        return loss


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
    trained, target = (sum(p.numel() * p.element_size() for p in part.parameters()) for part in (module.net, module.target))
    up = {n: trained + (target if make is not OneMoves or n == 20 else 0) for n in SIZES}
    assert {u.num_examples: u.bytes_up for u in sent.updates} == up


NoWeights = variant(WeightedAverage, weight=lambda self, update: 0.0)  # so that each client counts as 1


@pytest.mark.parametrize(
    ("route", "turns", "strategy"),
    [(FedCyclic(), 3, FedAvg), (Mediators(3), 3, FedAvg), (Mediators(3), 3, NoWeights), (RingFed(1), 1, FedAvg)],
)
def test_models_that_pass_between_clients_take_their_targets_along(route, turns, strategy):
    """On a chain over equal clients, the target has followed through all of them, also where each model counts as 1."""

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
    federate(module, 2, data=Blobs(30), partitioner=Consecutive(sizes), local=LocalTraining(), route=route, strategy=strategy())
    assert torch.allclose(module.target[0].bias - before, torch.tensor(2.0 * 2 * turns))


class Copies(Following):
    """Its target copies the network after each step, so that both are averaged alike if the weights are the same."""

    def on_train_batch_end(self, *_: Any) -> None:
        for own, followed in zip(self.target.parameters(), self.net.parameters(), strict=True):
            own.data = followed.data.clone()


@pytest.mark.parametrize(
    ("make", "memory"),
    [(lambda: Krum(0), 4.0), (lambda: CosineFilter(-1.0), 0.0), (GeometricMedian, 0.0), (Focus, 4.0), (NoWeights, 4.0)],
)
def test_targets_have_the_weights_of_strategies_that_see_all_models(make, memory):
    module = Copies()
    before = weights(module.target)
    federate(module, 2, strategy=make(), local=LocalTraining(), storage=Storage(memory))
    for name, own in module.target.named_parameters():
        assert torch.allclose(own, dict(module.net.named_parameters())[name], atol=1e-6)
        assert not torch.equal(own, before[name])


ALONE: Any = SimpleNamespace(gather=lambda mine: [mine])
"""The only rank."""


@pytest.mark.parametrize("weights", [(3.0, 5.0, 0.25), (0.0, 0.0, 0.0), (2.0**-70, 0.0, 3 * 2.0**-70), (0.1, 0.0, 0.0)])
def test_the_average_is_exact(weights):
    """Against fractions; the first client has not changed the tensor, and the weight 0 counts only if all clients have it."""
    module = network().requires_grad_(False)
    start, moved, sums = module[0].weight.clone(), MovedTensors(ModelState(module)), Sums()
    sent = [start, torch.randn_like(start), torch.randn_like(start)]
    for own, weight in zip(sent, weights, strict=True):
        moved.add({} if own is start else {"0.weight": own}, weight, sums)
    counts = [Fraction(weight) for weight in weights] if any(weights) else [Fraction(1)] * 3
    numbers = zip(*(map(Fraction, own.flatten().tolist()) for own in sent), strict=True)
    means = [float(sum(w * x for w, x in zip(counts, column, strict=True)) / sum(counts)) for column in numbers]
    found = moved.result(weights, sums, ALONE)["0.weight"].flatten()
    torch.testing.assert_close(found, torch.tensor(means, dtype=torch.float64), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_buffer_of_two_shapes_is_refused(ranks):
    """Also if the clients train on different ranks, whose sums are merged."""
    module = torch.nn.Module()
    module.register_buffer("low", torch.empty(0))
    sides = [(MovedTensors(ModelState(module)), Sums()) for _ in range(ranks)]
    for (moved, sums), own in zip((sides[0], sides[-1]), (torch.ones(2), torch.ones(2, 1)), strict=True):
        moved.add({"low": own}, 1.0, sums)
    moved, whole = sides[0]
    for _, other in sides[1:]:
        whole.merge(other)
    with pytest.raises(ConfigurationError, match=r"'low' the shape \(2,\) at one client and \(2, 1\) at another"):
        moved.result([1.0, 1.0], whole, ALONE)
