"""Differential privacy of examples: clipping and noise by hand, epsilon by another accountant."""

import copy
import math

import pytest
import shake
import torch
from accountants import poisson
from against_hand import Updates, assert_follows
from by_hand import B, averaged
from federations import SIZES, Blobs, Plain, federate, same_bits, weights
from hypothesis import given
from hypothesis import strategies as st
from listed import AtHand, Listed
from private_runs import NO_NOISE, logged
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fl_lightning import ExamplePrivacy, LocalTraining
from fl_lightning.data.tensor_loader import PoissonBatches
from fl_lightning.functional.keyed_noise import SecretKey


def coins(seed):
    return lambda batch, count: SecretKey.from_seed(seed).stream("coins", 0, step=batch).uniforms(count)


def private_sgd(net, batches, norm, mu=0.0, momentum=0.0, lr=0.1, expected=B, rule=F.cross_entropy):
    """DP-SGD without noise, one example at a time."""
    client = copy.deepcopy(net).train()
    anchor = [p.detach().clone() for p in client.parameters()]
    velocity = [torch.zeros_like(p) for p in client.parameters()]
    for x, y in batches:
        total = [torch.zeros_like(p) for p in client.parameters()]
        for i in range(len(x)):
            gradients = torch.autograd.grad(rule(client(x[i : i + 1]), y[i : i + 1]), list(client.parameters()))
            length = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += g * min(1.0, norm / (length + 1e-6))
        with torch.no_grad():
            for p, g, v, w in zip(client.parameters(), total, velocity, anchor, strict=True):
                v.mul_(momentum).add_(g / expected + mu * (p - w))
                p -= lr * v
    return client


def test_each_examples_gradient_is_clipped():
    """All examples in one batch, three epochs, with momentum and FedProx's term, against a loop over examples."""

    def step(net, world, t):
        clients = []
        for part in world.parts:
            whole = [(world.x[part], world.y[part])] * 3
            clients.append(private_sgd(net, whole, 0.3, mu=0.2, momentum=0.9, expected=len(part)))
        return averaged(net, clients, world.sizes)

    local = LocalTraining(max_epochs=3, full_batch=True, privacy=ExamplePrivacy(0.3, NO_NOISE), proximal_mu=0.2)
    assert_follows(torch.float64, step, local=local, batchnorm=False, momentum=0.9, tolerance=1e-6)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batches_are_drawn_by_coins(batch_size):
    """Batches of any size, empty ones too, which move nothing."""
    data = Blobs(batch_size=batch_size)
    torch.manual_seed(2)
    module = Plain()
    by_hand = copy.deepcopy(module.net)
    privacy = ExamplePrivacy(0.5, NO_NOISE, noise_seed=4)
    updates = Updates()
    federate(module, 2, updates, data=data, local=LocalTraining(max_epochs=2, privacy=privacy))
    x, y = data.train
    empty = 0
    for t in range(2):
        clients, start = [], 0
        for k, size in enumerate(SIZES):
            batches = []
            for step in range(2 * math.ceil(size / batch_size)):
                thrown = shake.uniforms(size, shake.key_of(4), t, k, step, 0, "coins of examples, period 0")
                chosen = start + torch.tensor([i for i, x in enumerate(thrown) if x < min(batch_size, size) / size]).long()
                empty += not chosen.numel()
                batches.append((x[chosen], y[chosen]))
            clients.append(private_sgd(by_hand, batches, 0.5, expected=min(batch_size, size)))
            start += size
            assert updates.rounds[t][k].num_steps == len(batches)
        by_hand = averaged(by_hand, clients, SIZES)
    assert (empty > 0) == (batch_size == 1)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-5)


class ByWorkers(AtHand):
    def train_dataloader(self):
        return DataLoader(Listed(*self.train), batch_size=self.batch_size, shuffle=True, num_workers=1)


@pytest.mark.slow
def test_examples_that_are_read_one_by_one_are_drawn_alike():
    finals = []
    for source in (Blobs, AtHand, ByWorkers):
        torch.manual_seed(0)
        module = Plain()
        federate(module, 2, data=source(), local=LocalTraining(privacy=ExamplePrivacy(0.5, 0.8, noise_seed=1)))
        finals.append(weights(module))
    assert same_bits(finals[0], finals[1])
    assert same_bits(finals[0], finals[2])


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 9))
def test_poisson_batches(size, batch_size, seed):
    batches = PoissonBatches(size, batch_size, coins(seed))
    drawn = list(batches)
    assert len(drawn) == len(batches) == math.ceil(size / batch_size)
    assert batches.rate == min(batch_size, size) / size
    for batch, persons in zip(drawn, batches.drawn, strict=True):
        assert batch == sorted(set(batch))
        assert set(batch) <= set(range(size))
        assert batch == [0] if persons is None else persons.tolist() == list(range(len(batch)))
    if batch_size >= size:
        assert drawn == [list(range(size))]


def test_flags_of_batches_drawn_ahead_are_forgotten():
    batches = PoissonBatches(30, 1, coins(0))
    ahead = iter(batches)
    for _ in range(5):
        next(ahead)
    drawn = list(batches)
    assert len(batches.drawn) == len(drawn) == 30


@pytest.mark.slow
def test_epsilon_of_examples_counts_each_clients_steps():
    updates = Updates()
    privacy = ExamplePrivacy(1.0, 0.9, 1e-4)
    run = federate(Plain(), 3, updates, local=LocalTraining(max_epochs=2, privacy=privacy), clients_per_round=2)
    steps, spent = dict.fromkeys(range(3), 0), {}
    for updates_of in updates.rounds:
        for update in updates_of:
            steps[update.client] += update.num_steps
            spent[update.client] = poisson(0.9, B / SIZES[update.client], steps[update.client], 1e-4)[1]
            assert update.epsilon == pytest.approx(spent[update.client], rel=0.01, abs=0.02)
    assert logged(run)["federation/epsilon_of_examples"] == pytest.approx(max(spent.values()), rel=0.01, abs=0.02)


def test_the_module_is_left_as_it_was(recwarn):
    """What Opacus leaves on layers meanwhile is not the module's state, of which turns would warn."""
    module = Plain()
    federate(module, 2, local=LocalTraining(privacy=ExamplePrivacy(1.0, 1.0)))
    assert not [str(warning.message) for warning in recwarn if "client_state" in str(warning.message)]
    for part in module.modules():
        assert not part._forward_hooks
        assert not part._backward_hooks
    assert all("grad_sample" not in vars(parameter) for parameter in module.parameters())
