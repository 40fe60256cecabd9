"""Clients that lie about their labels or their models: each attack against another library's, or a closed form."""

import copy

import byzfl
import lightning as L
import numpy as np
import pytest
import torch
from against_hand import Updates, assert_follows, divided, sending
from by_hand import World, averaged
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, weights
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

import fl_lightning as fl
from fl_lightning.attacks import Crowd
from fl_lightning.options.attackers.measures import detection

FIVE = (7, 9, 8, 12, 4)
HOSTILE = [1, 3]
HONEST = [0, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "forge"),
    [
        (fl.SignFlip(0.5), lambda own, honest: -0.5 * own),
        (fl.ScaledUpdate(1.5), lambda own, honest: 1.5 * own),
        (fl.ALIE(1.5), lambda own, honest: byzfl.ALittleIsEnough(tau=-1.5)(honest)),
        (fl.InnerProductManipulation(0.2), lambda own, honest: byzfl.InnerProductManipulation(tau=0.2)(honest)),
    ],
    ids=["sign flip", "scaled", "ALIE", "inner product"],
)
def test_what_attackers_send(attack, forge):
    """``forge(own change, honest changes)`` is what clients 1 and 3 of five send, by another library."""

    def lie(k, changes):
        return forge(changes[k], np.stack([changes[j] for j in HONEST])) if k in HOSTILE else changes[k]

    attackers = fl.Attackers(clients=HOSTILE, model=attack)
    _, rounds = assert_follows(torch.float64, sending(lie), **divided(FIVE), attackers=attackers)
    assert [update.client for update in rounds[0]] == [0, 1, 2, 3, 4]


def test_gaussian_noise_has_its_standard_deviation():
    draw = torch.Generator().manual_seed(0)
    forged = fl.GaussianUpdate(0.3).forge(torch.zeros(100_000, dtype=torch.float64), None, draw)
    assert float(forged.std()) == pytest.approx(0.3, rel=0.02)
    assert float(forged.mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(("honest", "attackers", "share"), [(26, 24, 24 / 26), (6, 2, 3 / 6), (5, 5, 4 / 5), (4, 6, 1 - 1 / 8)])
def test_alies_z_is_the_papers(honest, attackers, share):
    """The first is the paper's own example: 50 workers, 24 of them corrupted, 2 to be won over."""
    crowd = Crowd(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), honest, attackers)
    sent = fl.ALIE().forge(torch.zeros(1), crowd, torch.Generator())
    assert float(sent) == pytest.approx(-norm.ppf(share), abs=1e-12)


@pytest.mark.parametrize(("attack", "sign"), [(fl.ALIE(), 1), (fl.InnerProductManipulation(), -1)])
def test_without_honest_clients_there_is_no_crowd(attack, sign):
    """All clients of the round are attackers: they send what they have, or its opposite. By hand."""
    L.seed_everything(3, verbose=False)
    module, world = Plain(), World(torch.float32)
    start = copy.deepcopy(module.net)
    attackers = fl.Attackers(clients=[0, 1, 2], model=attack)
    federate(module, 1, data=Blobs(shuffle=False), attackers=attackers, strategy=fl.FedAvg())
    mean = averaged(start, [world.train(start, k)[0] for k in range(3)], world.sizes)
    for w, w_0, w_mean in zip(module.net.parameters(), start.parameters(), mean.parameters(), strict=True):
        torch.testing.assert_close(w, w_0 + sign * (w_mean - w_0), rtol=5e-6, atol=5e-6)


def test_attacks_begin_in_their_round():
    """Before it the run is that of honest clients, bit for bit."""
    late = fl.Attackers(clients=[1], model=fl.SignFlip(), labels=fl.PermutedLabels(), discard_global=[1], from_round=2)
    for rounds in (2, 3):
        models = []
        for attackers in (fl.Attackers(), late):
            torch.manual_seed(0)
            module = Plain()
            federate(module, rounds, attackers=attackers)
            models.append(weights(module))
        assert same_bits(*models) == (rounds == 2)


class InPlace(fl.LabelAttack):
    """Swaps classes 0 and 1 in the labels that it is given."""

    def change(self, labels, num_classes, generator):
        labels[labels < 2] = 1 - labels[labels < 2]
        return labels


@pytest.mark.parametrize(
    ("attack", "change"),
    [
        (fl.PermutedLabels(2), lambda y: (y + 2) % 3),
        (fl.RelabelClass(2, 0), lambda y: torch.where(y == 2, 0, y)),
        (InPlace(), lambda y: torch.where(y < 2, 1 - y, y)),
    ],
    ids=["permuted", "one class", "in place"],
)
def test_labels_that_attackers_train_on(attack, change):
    def step(net, world, t):
        lies = change(world.y[world.parts[1]])
        clients = [world.train(net, k, examples=(world.x[world.parts[k]], lies) if k == 1 else None)[0] for k in range(3)]
        return averaged(net, clients, world.sizes)

    assert_follows(torch.float64, step, attackers=fl.Attackers(clients=[1], labels=attack))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_label_attacks_keep_to_the_classes(labels, shift, share, seed):
    true, draw = torch.tensor(labels), torch.Generator().manual_seed(seed)
    for attack, wrong in ((fl.RandomLabels(share), round(share * len(labels))), (fl.PermutedLabels(shift), len(labels))):
        lies = attack.change(true, 6, draw)
        assert int((lies != true).sum()) == wrong
        assert 0 <= int(lies.min()) <= int(lies.max()) < 6
    permuted = fl.PermutedLabels(shift).change(torch.arange(6), 6, draw)
    assert sorted(permuted.tolist()) == list(range(6))
    lies = fl.RelabelClass(0, 5).change(true, 6, draw)
    assert bool((lies[true != 0] == true[true != 0]).all())
    assert bool((lies[true == 0] == 5).all())


def test_a_share_of_the_clients_is_drawn_once():
    attackers = fl.Attackers(clients=0.25, model=fl.SignFlip())
    drawn = attackers.members(20, 3)
    assert len(drawn) == 5
    assert drawn == attackers.members(20, 3) != attackers.members(20, 4)


def weighed(weights):
    total = sum(weights) or 1.0
    return [fl.ClientUpdate(k, 0, 10, 1, weight=w, share=w / total) for k, w in enumerate(weights)]


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=2, max_size=12))
def test_the_auroc_is_scikit_learns(clients):
    weights, hostile = zip(*clients, strict=True)
    attackers = [k for k, bad in enumerate(hostile) if bad]
    figures = detection(weighed(weights), attackers)
    if not attackers:
        assert figures == {}
    elif len(attackers) == len(clients):
        assert "attacker_auroc" not in figures
    else:
        assert figures["attacker_auroc"] == pytest.approx(roc_auc_score(hostile, [-w for w in weights]))
        assert figures["attacker_share"] == pytest.approx(sum(weights[k] for k in attackers) / (sum(weights) or 1.0))


@pytest.mark.slow
def test_adafed_tells_attackers_apart():
    """Two of seven have learnt nonsense."""
    data = {"data": Blobs(n=140), "partitioner": Consecutive((20,) * 7)}
    lies = fl.Attackers(clients=[1, 4], labels=fl.PermutedLabels())
    run = federate(Plain(), 3, strategy=fl.AdaFed("val_acc"), attackers=lies, **data)
    assert float(run.callback_metrics["federation/attackers"]) == 2
    assert float(run.callback_metrics["federation/attacker_auroc"]) == 1
    assert float(run.callback_metrics["federation/attacker_share"]) < 2 / 7


def test_what_is_not_finite_never_gets_in():
    for scale, message in ((1e42, "Client 1 .* the weights that it sent are not finite"), (1e30, "too large to be summed")):
        attackers = fl.Attackers(clients=[1], model=fl.ScaledUpdate(scale))
        with pytest.raises(fl.ClientError, match=message):
            federate(Plain(), 1, attackers=attackers)
        finals = []
        for more in ({"attackers": attackers}, {}):
            torch.manual_seed(0)
            module, updates = Plain(), Updates()
            data = Blobs()
            if not more:  # the same without the client
                data.train[0][SIZES[0] : SIZES[0] + SIZES[1]] = float("nan")
            with pytest.warns(UserWarning, match="Round 0 continues without client 1: "):
                federate(module, 1, updates, data=data, faults=fl.Faults("skip"), **more)
            assert [update.client for update in updates.rounds[0]] == [0, 2]
            finals.append(weights(module))
        assert same_bits(*finals)


@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_attackers_learn_nothing_from_a_client_that_broke(value):
    """The median copes with it, and so must they."""
    data = Blobs(n=40, shuffle=False)
    data.train[0][: FIVE[0]] = value
    updates = Updates()
    attackers = fl.Attackers(clients=HOSTILE, model=fl.ALIE(1.0))
    federate(Plain(), 1, updates, data=data, partitioner=Consecutive(FIVE), attackers=attackers, strategy=fl.FedMedian())
    assert len(updates.rounds[0]) == 5
