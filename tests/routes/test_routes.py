"""Every route against its algorithm, worked by hand: three rounds, unequal clients, BatchNorm, float64."""

import numpy as np
import pytest
import torch
from against_hand import assert_follows, clients_of, divided
from by_hand import accuracy, averaged, build, flat
from federations import SIZES, Blobs, Consecutive, Plain, blobs, ready, trainer
from hypothesis import given
from hypothesis import strategies as st
from listed import AtHand
from poisoning import mislabel
from scipy.stats import entropy

import fl_lightning as fl
from fl_lightning.functional.model_state import ModelState
from fl_lightning.routes.mediators import balanced_groups
from fl_lightning.routes.periods import mix, star_matrix


def cyclic(net, world, t):
    for k in range(len(world.parts)):
        net, _ = world.train(net, k)
    return net


def test_fedcyclic_passes_one_model_through_all_clients():
    _, rounds = assert_follows(torch.float64, cyclic, route=fl.FedCyclic())
    assert [u.num_steps for u in rounds[-1]] == [4, 8, 6]


def test_warm_start_is_cyclic_and_then_averages():
    def step(net, world, t):
        return cyclic(net, world, t) if t < 2 else averaged(net, clients_of(net, world), [1, 1, 1])

    assert_follows(torch.float64, step, route=fl.WarmStart(rounds=2), strategy=fl.FedAvg("uniform"))


def fedstar(net, world, periods):
    models = [net] * 3
    for _ in range(periods):
        trained = [world.train(model, k)[0] for k, model in enumerate(models)]
        matrix = np.array([[1 - world.on_client(model, accuracy, k) for model in trained] for k in range(3)])
        models = []
        for k in range(3):
            mixed = averaged(net, trained, matrix[k])
            models.append(build(mixed, *flat(mixed)[:2], flat(trained[k])[2]))  # counters stay a client's own
    return averaged(net, models, world.sizes)


@pytest.mark.parametrize("periods", [1, 2])
def test_fedstar_mixes_by_the_errors_on_each_clients_data(periods):
    def step(net, world, t):
        return fedstar(net, world, periods)

    run, rounds = assert_follows(torch.float64, step, route=fl.FedStar(periods, metric="val_acc"), tolerance=1e-7)
    assert [u.num_steps for u in rounds[-1]] == [4 * periods, 8 * periods, 6 * periods]
    model = ModelState(Plain(batchnorm=True).double()).nbytes(upward=True)
    # to two others after each period, and to the server
    assert run.callback_metrics["federation/bytes_up"] == 3 * model * (1 + 2 * periods)
    assert run.callback_metrics["federation/bytes_down"] == 3 * model * (1 + 2 * periods)  # and from them


@pytest.mark.parametrize("gamma", [0.3, pytest.param(0.8, marks=pytest.mark.slow)])
def test_ringfed_mixes_with_the_client_before(gamma):
    def step(net, world, t):
        trained = clients_of(net, world)
        for _ in range(2):
            models = []
            for k in range(3):
                mixed = averaged(net, [trained[k], trained[k - 1]], [1 - gamma, gamma])
                models.append(build(mixed, *flat(mixed)[:2], flat(trained[k])[2]))
            trained = [world.train(model, k)[0] for k, model in enumerate(models)]
        return averaged(net, trained, world.sizes)

    _, rounds = assert_follows(torch.float64, step, route=fl.RingFed(periods=3, gamma=gamma))
    model = ModelState(Plain(batchnorm=True).double()).nbytes(upward=True)
    assert rounds[0][1].bytes_up == 3 * model  # to the neighbour twice, to the server once
    assert rounds[0][1].bytes_down == 3 * model  # from the server once, from the neighbour twice


def test_fedstar_of_perfect_models_is_uniform():
    accuracies = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.5, 0.75], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[1 / 3] * 3, [0, 2 / 3, 1 / 3], [1 / 3] * 3], dtype=torch.float64)
    torch.testing.assert_close(star_matrix(accuracies), expected)
    states = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-4.0, 8.0]])
    torch.testing.assert_close(mix(states, expected)[1], torch.tensor([2 - 4 / 3, 1 / 3 + 8 / 3]))


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=8), st.integers(1, 4))
def test_groups_lose_nobody_and_are_the_greedy_ones(rows, size):
    groups = balanced_groups(torch.tensor(rows), size)
    assert sorted(k for group in groups for k in group) == list(range(len(rows)))
    assert [len(group) for group in groups[:-1]] == [size] * (len(groups) - 1)
    counts = np.array(rows, dtype=float)
    uniform = np.full(3, 1 / 3)
    left = set(range(len(rows)))
    for group in groups:  # ties may fall either way by rounding: each choice must be a best one
        total = np.zeros(3)
        for k in group:
            best = min(entropy(total + counts[j], uniform) for j in left)
            assert entropy(total + counts[k], uniform) == pytest.approx(best, abs=1e-9)
            left.remove(k)
            total = total + counts[k]


SKEWED = (10, 4, 12, 7, 7)


def test_mediators_train_balanced_groups_in_sequence():
    skewed = divided(SKEWED)
    world = skewed["world"]
    counts = np.stack([np.bincount(world.y[part].numpy(), minlength=3) for part in world.parts]).astype(float)
    groups = balanced_groups(torch.from_numpy(counts), 2)
    assert [len(group) for group in groups] == [2, 2, 1]

    def step(net, world, t):
        results, examples = [], []
        for group in groups:
            model = net
            for k in group:
                model, _ = world.train(model, k)
            results.append(model)
            examples.append(sum(SKEWED[k] for k in group))
        return averaged(net, results, examples)

    _, rounds = assert_follows(torch.float64, step, **skewed, route=fl.Mediators(2))
    assert sum(u.share for u in rounds[-1]) == pytest.approx(1)
    assert [u.weight for u in rounds[-1]] == pytest.approx(SKEWED)


def test_local_only_goes_on_from_each_clients_own_model():
    own = None

    def step(net, world, t):
        nonlocal own
        own = [world.train(model, k)[0] for k, model in enumerate(own or [net] * 3)]
        return own[int(np.argmax([world.on_server(model, accuracy) for model in own]))]

    run, rounds = assert_follows(torch.float64, step, route=fl.LocalOnly("val_acc"))
    scores = [update.score for update in rounds[-1]]
    assert run.callback_metrics["val_acc"] == pytest.approx(max(scores))
    assert run.callback_metrics["federation/score"] == pytest.approx(np.mean(scores))
    assert run.callback_metrics["federation/bytes_up"] == 0


def examples_of(data, client, seed=5):
    return [torch.cat(column) for column in zip(*data.client(client, seed).train_dataloader(), strict=True)]


def test_attackers_of_simulation_3():
    """Client 2 has all labels wrong, and goes on from its own model; FedAvg takes it in."""
    probe = ready(fl.FederatedDataModule(Blobs(shuffle=False), Consecutive()))
    mislabel(probe, {2: 1.0}, 0)
    own = None

    def step(net, world, t):
        nonlocal own
        clients = []
        for k in range(3):
            start = own if k == 2 and own is not None else net
            clients.append(world.train(start, k, examples=examples_of(probe, k))[0])
        own = clients[2]
        return averaged(net, clients, world.sizes)

    assert_follows(torch.float32, step, attackers=fl.Attackers({2: 1.0}, [2]))


def test_attackers_labels_are_true_again_after_the_fit():
    data = fl.FederatedDataModule(Blobs(shuffle=False), Consecutive())
    run = trainer(1, fl.FederatedOrchestrator(attackers=fl.Attackers({0: 1.0})))
    run.fit(Plain(), data)
    assert torch.equal(examples_of(data, 0)[1], blobs(40, 1)[1][:7])


def averaging(source=None, *transform):
    source = source or Blobs(shuffle=False)
    return ready(fl.FederatedDataModule(source, Consecutive(), rebalancing=fl.LabelAveraging(*transform)))


def test_label_averaging_repeats_up_to_the_mean_of_the_clients():
    data = averaging()
    labels = blobs(40, 1)[1]
    parts = np.split(np.arange(40), np.cumsum(SIZES)[:-1])
    counts = np.stack([np.bincount(labels[part], minlength=3) for part in parts])
    mean = counts.mean(0)
    for k in range(3):
        x, y = examples_of(data, k)
        held = np.bincount(y, minlength=3)
        for c in range(3):
            assert held[c] == (max(counts[k, c], int(mean[c])) if counts[k, c] else 0)
        known = {tuple(row.tolist()) for row in blobs(40, 1)[0][parts[k]]}
        assert {tuple(row.tolist()) for row in x} == known  # repeated, not made up
    assert data.num_examples(0) == SIZES[0]  # weights count what a client holds


class Shifted(torch.nn.Module):
    def forward(self, x):
        return x + 100


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_augmentation_changes_the_repeated_examples_only(kind):
    data, plain = averaging(kind(shuffle=False), Shifted()), averaging(kind(shuffle=False))
    for k in range(3):
        (x, y), (x0, y0) = examples_of(data, k), examples_of(plain, k)
        assert torch.equal(y, y0)
        assert torch.equal(x[: SIZES[k]], x0[: SIZES[k]])
        torch.testing.assert_close(x[SIZES[k] :], x0[SIZES[k] :] + 100)
        assert k == 1 or len(x) > SIZES[k]


def test_label_averaging_draws_anew_in_each_round_and_the_same_for_a_seed():
    data = averaging()
    one, two, again = (examples_of(data, 0, seed)[0] for seed in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
