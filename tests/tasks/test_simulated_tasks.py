"""The simulator of related tasks: its weights, its examples, and who holds what."""

import numpy as np
import pytest
import torch
from federations import ready
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, kstest

from fl_lightning import DomainPartitioner, FederatedDataModule, IIDPartitioner, SimulatedTasksDataModule
from fl_lightning.functional.related_tasks import related_examples, related_weights


def drawn(**more) -> SimulatedTasksDataModule:
    return ready(SimulatedTasksDataModule(**more))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_without_spread_a_group_shares_its_weights(clients, groups, features, seed):
    groups = min(groups, clients)
    weights = related_weights(clients, groups, features, 0.0, torch.Generator().manual_seed(seed))
    assert weights.shape == (clients, features)
    assert len({tuple(row) for row in weights.tolist()}) == groups
    for t in range(groups, clients):
        assert torch.equal(weights[t], weights[t - groups])


def examples(kind: str, noise: float) -> tuple[torch.Tensor, ...]:
    weights, shifts = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 0.0]]).double(), torch.tensor([[0, 0], [5, -5], [1, 1.0]])
    clients = torch.arange(3).repeat_interleave(torch.tensor([2000, 3000, 1000]))
    draw = torch.Generator().manual_seed(3)
    inputs, targets = related_examples(weights, shifts.double(), clients, 2, kind, noise, draw)
    return weights, shifts.double(), clients, inputs, targets


def test_regression_is_linear_in_each_client():
    weights, shifts, clients, inputs, targets = examples("regression", 0.3)
    for t in range(3):
        assert kstest((inputs[clients == t] - shifts[t]).flatten().numpy(), "norm").pvalue > 0.01
    noise = (targets - (weights[clients] * inputs).sum(dim=1)) / 0.3
    assert kstest(noise.numpy(), "norm").pvalue > 0.01


def test_clusters_are_blobs_around_the_weights():
    weights, shifts, clients, inputs, targets = examples("clusters", 0.2)
    assert targets.tolist() == [[0, 1, 0][t] for t in clients.tolist()]
    around = (inputs - weights[clients] - shifts[clients]) / 0.2
    assert kstest(around.flatten().numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize("kind", ["regression", "classification", "clusters"])
def test_every_task_is_a_client(kind):
    base = SimulatedTasksDataModule(12, 3, 4, (5, 9), kind, test_examples=100, seed=4)
    data = ready(FederatedDataModule(base, DomainPartitioner()))
    assert [data.client_name(k) for k in (0, 4, 11)] == ["client 00 of group 0", "client 04 of group 1", "client 11 of group 2"]
    assert data.num_clients == 12
    assert set(data.indices.sizes.tolist()) <= {5, 6, 7, 8, 9}
    inputs, targets = base.train_set.tensors
    assert inputs.dtype == torch.float32
    assert targets.dtype == (torch.float32 if kind == "regression" else torch.int64)
    for k in range(12):
        assert set(base.train_set.domains[data.indices[k]].tolist()) == {k}
        if kind == "clusters":
            assert set(targets[data.indices[k]].tolist()) == {k % 3}
    assert base.origin == f"simulated, {kind}: 12 clients in 3 groups ({len(inputs)} + 100 examples, 4 features)"
    held, _ = next(iter(data.val_dataloader()))
    assert held.shape == (100, 4)
    assert not set(map(tuple, held.tolist())) & set(map(tuple, inputs.tolist()))
    mixed = ready(FederatedDataModule(base, IIDPartitioner(3)))
    assert len(set(base.train_set.domains[mixed.indices[0]].tolist())) > 4


def test_true_weights_are_those_of_the_data():
    data = drawn(num_clients=4, groups=2, features=3, examples=(30, 40), noise=0.0, spread=0.5, shift=2.0, seed=8)
    inputs, targets = (tensor.double().numpy() for tensor in data.train_set.tensors)
    assert data.true_weights().shape == (4, 3)
    for t in range(4):
        mine = data.train_set.domains.numpy() == t
        found = np.linalg.lstsq(inputs[mine], targets[mine], rcond=None)[0]
        np.testing.assert_allclose(found, data.true_weights()[t], atol=1e-5)
    held, values = next(iter(data.val_dataloader()))
    own = data.true_weights()[torch.arange(500) % 4]  # in turn
    np.testing.assert_allclose((own * held).sum(dim=1), values, atol=1e-4)


def test_outliers_have_a_second_noise():
    sizes = {"num_clients": 20, "groups": 1, "examples": (200, 200), "test_examples": 1000}
    shares = {"outliers": 0.1, "server_outliers": 0.3}
    clean, noisy = (drawn(**sizes, **more) for more in ({}, shares))
    parts = [(data.train_set.tensors, next(iter(data.val_dataloader()))) for data in (clean, noisy)]
    for ((inputs, targets), (same, moved)), share in zip(zip(*parts, strict=True), (0.1, 0.3), strict=True):
        assert torch.equal(inputs, same)
        difference = (moved - targets).double()
        changed = difference != 0
        assert binomtest(int(changed.sum()), len(changed), share).pvalue > 0.01
        assert kstest((difference[changed] / 10).numpy(), "norm").pvalue > 0.01


def test_the_seed_alone_decides():
    state = torch.get_rng_state()
    one, same, other = (drawn(seed=seed, shift=1.0) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.train_set.tensors, same.train_set.tensors, strict=True))
    assert not torch.equal(one.true_weights(), other.true_weights())
    assert not torch.equal(one.train_set.tensors[0][:20], other.train_set.tensors[0][:20])
