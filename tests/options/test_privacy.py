"""Differential privacy of clients: noise and clipping by hand, epsilon by another accountant, noise nobody can subtract."""

import base64
import math
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest
import shake
import torch
import wandb
from accountants import attained, gaussian_epsilon, renyi
from against_hand import Updates, assert_follows, sending
from by_hand import flat
from federations import SIZES, Blobs, Cohorts, Consecutive, Plain, federate, same_bits, weights
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from private_runs import LEDGER, NO_NOISE, fit, last, logged, private
from run_private import MODES
from scipy import stats

import fl_lightning as fl
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.privacy import epsilon_of_clients
from fl_lightning.transforms import Message, Sender


def secret(seed=0):
    return SecretKey.from_seed(seed).stream("test", 0)


def sender(seed=0, kept=None):
    return Sender(0, 0, torch.Generator(), {} if kept is None else kept, secret(seed))


def test_noise_at_the_client_is_gaussian():
    change = torch.zeros(200_000, dtype=torch.float64)
    change[0] = 50.0
    local = fl.ClientPrivacy(2.0, 1.5, "local")
    sent = local.apply(Message(change, 8, torch.tensor([0]), 4), sender(3))
    noise = sent.change.clone()
    noise[0] -= 2.0  # what is left of 50
    assert stats.kstest(noise.numpy() / 3.0, "norm").pvalue > 1e-3
    assert (sent.positions, sent.nbytes) == (None, 4 * 200_000)  # which numbers were sent would not be private
    assert torch.equal(local.receive(change, 2, 3, torch.Generator(), secret()), change)


def test_noise_at_the_server_is_that_of_the_sum():
    central = fl.ClientPrivacy(2.0, 1.5)
    change = torch.zeros(200_000, dtype=torch.float64)
    noise = central.receive(change, 6, 6, torch.Generator(), secret(1)).numpy()
    assert stats.kstest(noise / (2.0 * 1.5 / 6), "norm").pvalue > 1e-3
    assert torch.equal(central.apply(Message(change, 32), sender()).change, change)


@pytest.mark.parametrize("noise", ["central", "local"])
def test_without_noise_it_is_the_clipped_average(noise):
    clipped = sending(lambda k, changes: changes[k] * min(1, 0.4 / np.linalg.norm(changes[k])), np.ones(3))
    settings = {"strategy": fl.FedAvg("uniform"), "batchnorm": False, "tolerance": 1e-7}
    assert_follows(torch.float64, clipped, transforms=[fl.ClientPrivacy(0.4, NO_NOISE, noise)], **settings)


def test_epsilon_of_a_federation_counts_cohorts_and_rounds():
    strategy = fl.FedAvg("uniform")
    transforms = [fl.TopK(0.5), fl.ClientPrivacy(0.5, 8.0, delta=1e-3)]
    run = federate(Plain(), 3, strategy=strategy, transforms=transforms, clients_per_round=1)
    spent = logged(run)["federation/epsilon_of_clients"]
    assert attained(8.0, 1, 3, 3, 1e-3)[0] <= spent <= renyi(8.0, 1, 3, 3, 1e-3)
    assert spent > attained(8.0, 1, 3, 2, 1e-3)[1]
    assert spent == pytest.approx(epsilon_of_clients(8.0, 1, 3, 3, 1e-3), rel=1e-6)


def test_epsilon_of_local_noise_is_that_of_the_client_that_sent_most():
    updates = Updates()
    privacy = fl.ClientPrivacy(0.5, 4.0, "local", 1e-3, noise_seed=1)
    run = federate(Plain(), 4, updates, transforms=[privacy], clients_per_round=1)
    sent = [sum(any(u.client == k for u in r) for r in updates.rounds) for k in range(3)]
    assert 1 < max(sent) < 4
    exact = gaussian_epsilon(4.0 / 2 / math.sqrt(max(sent)), 1e-3)
    assert logged(run)["federation/epsilon_of_clients"] == pytest.approx(exact, rel=1e-3)


def test_frozen_parameters_are_not_sent_and_get_no_noise():
    frozen = Plain()
    frozen.net[0].requires_grad_(False)
    before = weights(frozen)
    federate(frozen, 1, transforms=[fl.ClientPrivacy(1.0, 1.0)], strategy=fl.FedAvg("uniform"))
    assert torch.equal(frozen.net[0].weight, before["net.0.weight"])
    assert not torch.equal(frozen.net[2].weight, before["net.2.weight"])


def test_a_client_that_failed_changed_nothing():
    """The sum over those who delivered, divided by all: who failed cannot be seen in the average's noise either."""
    finals = {}
    for name, sizes in (("failed", SIZES), ("two", SIZES[1:])):
        torch.manual_seed(0)
        module, data = Plain(), Blobs()
        if name == "failed":
            data.train[0][: SIZES[0]] = torch.nan
        else:  # without the first client's examples
            data.train = tuple(tensor[SIZES[0] :] for tensor in data.train)
        start = flat(module.net)[0]
        privacy = {"strategy": fl.FedAvg("uniform"), "transforms": [fl.ClientPrivacy(5.0, NO_NOISE)]}
        local = fl.LocalTraining(full_batch=True)
        federate(module, 1, data=data, partitioner=Consecutive(sizes), faults=fl.Faults("skip"), local=local, **privacy)
        finals[name] = flat(module.net)[0] - start
    np.testing.assert_allclose(finals["failed"], finals["two"] * 2 / 3, rtol=1e-4, atol=1e-7)


def test_a_change_that_is_not_finite_is_not_told():
    for value in (math.nan, math.inf):
        change = torch.tensor([1.0, value, 2.0], dtype=torch.float64)
        sent = fl.ClientPrivacy(1.0, NO_NOISE, "local").apply(Message(change, 32), sender())
        torch.testing.assert_close(sent.change, torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"transforms": [fl.ClientPrivacy(1.0, 0.1)]}, {"transforms": [fl.ClientPrivacy(1.0, 10.0)]}),
        ({"transforms": [fl.ClientPrivacy(1.0, 8.0, noise_seed=7)]}, {"transforms": [fl.ClientPrivacy(1.0, 8.0)]}),
        ({}, {"transforms": [fl.ClientPrivacy(1.0, 10.0)]}),
        (
            {"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.3))},
            {"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 9.0))},
        ),
        ({"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.3))}, {}),
    ],
)
def test_a_resumed_run_keeps_its_promise(first, then, tmp_path):
    strategy = {"strategy": fl.FedAvg("uniform")}
    fit(tmp_path, 1, **strategy, **first)
    with pytest.raises(fl.CheckpointError, match=r"The checkpoint was written with .*No single epsilon covers both"):
        federate(Plain(), 2, ckpt_path=last(tmp_path), **strategy, **then)


@pytest.mark.parametrize("package", ["opacus", "dp_accounting"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    make = {"opacus": lambda: fl.ExamplePrivacy(1.0, 1.0), "dp_accounting": lambda: fl.ClientPrivacy(1.0, 1.0)}[package]
    with pytest.raises(fl.ConfigurationError, match=r"pip install 'fl_lightning\[privacy\]'"):
        make()


def test_two_starts_draw_other_cohorts():
    """Of 12 rounds of 1 client of 3; with the seed alone all starts were the same."""
    starts = [Cohorts(), Cohorts()]
    for number, seen in enumerate(starts):
        private(str(number), 12, callbacks=[seen], clients_per_round=1)
    assert starts[0].seen != starts[1].seen


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_never_drawn_again(mode, tmp_path):
    """Neither by another start nor by a round that is repeated, which costs again."""
    one, other = (private(name, mode=mode, clients_per_round=3)[0] for name in ("one", "other"))
    assert not any((a == b).any() for a, b in zip(one.parameters(), other.parameters(), strict=True))
    Path("one/c/last.ckpt").rename("first.ckpt")
    (one, first), (other, second) = (private("one", 2, mode, ckpt_path="first.ckpt", clients_per_round=3) for _ in range(2))
    assert not same_bits(weights(one), weights(other))
    name = "federation/epsilon_of_" + ("examples" if mode == "examples" else "clients")
    assert first[name] < second[name]


@pytest.mark.usefixtures("_no_wandb")
def test_the_key_is_in_no_file(monkeypatch, tmp_path):
    key, asked = bytes(range(100, 132)), []

    def known(count):
        asked.append(count)
        return key[:count] if count == 32 else bytes(count)

    monkeypatch.setattr(secrets, "token_bytes", known)
    loggers = [CSVLogger(tmp_path / "run"), WandbLogger(save_dir=tmp_path / "run", offline=True)]
    private(tmp_path / "run", 2, **MODES["examples"](), flags={"logger": loggers})
    loggers[1].experiment.finish()
    wandb.teardown()  # its process writes the rest of the file after the run is finished
    assert asked.count(32) == 1
    forms = [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key), base64.urlsafe_b64encode(key)]
    forms += [repr(key)[2:-1].encode(), str(list(key))[1:-1].encode(), key[:16], key[16:]]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"last.ckpt", LEDGER, "metrics.csv"} <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        content = path.read_bytes()
        assert not any(form in content for form in forms), path


@pytest.mark.parametrize("noise", [pytest.param("central", marks=pytest.mark.slow), "local"])
def test_with_a_noise_seed_noise_is_by_hand_and_costs_once(noise, tmp_path, recwarn):
    """Every start draws the same noise, so that a repeated round releases nothing new; there is no ledger."""

    def settings(z):
        privacy = fl.ClientPrivacy(0.5, z, noise, 1e-3, noise_seed=7)
        return {"transforms": [privacy], "clients_per_round": 3, "flags": {"precision": "64-true"}}

    finals = {}
    for name, z in (("without", NO_NOISE), ("one", 1.0), ("other", 1.0)):
        module, logged = private(tmp_path / "run", **settings(z))
        finals[name] = flat(module.net)[0]
    np.testing.assert_array_equal(finals["one"], finals["other"])
    size = len(finals["one"])
    senders = [-1] if noise == "central" else [0, 1, 2]
    drawn = [shake.normals(size, shake.key_of(7), 0, sender, 0, 0, "transform 0") for sender in senders]
    np.testing.assert_allclose(finals["one"] - finals["without"], 0.5 / 3 * np.sum(drawn, axis=0), atol=1e-7)
    assert not (tmp_path / "run" / LEDGER).exists()
    assert logged["federation/noise_is_simulated"] == 1.0
    said = [str(warning.message) for warning in recwarn]
    assert any(text.startswith("The noise of this run is derived from 'noise_seed' 7, so anyone who") for text in said)
    assert any(text.startswith("The run has finished. The noise of this run") and "protects no data" in text for text in said)

    resume = {"rounds": 2, "folder": tmp_path / "again", "ckpt_path": last(tmp_path / "run")}
    one, other = (private(**resume, **settings(1.0))[1]["federation/epsilon_of_clients"] for _ in range(2))
    assert one == other > logged["federation/epsilon_of_clients"]
    assert one == pytest.approx(gaussian_epsilon(0.5 / math.sqrt(2), 1e-3), rel=1e-3)


def test_cohorts_of_a_noise_seed_by_hand(tmp_path):
    seen = Cohorts()
    private(tmp_path, 5, callbacks=[seen], transforms=[fl.ClientPrivacy(0.5, 1.0, noise_seed=7)])
    for round_idx, cohort in enumerate(seen.seen):
        ((*words,),) = shake.words(3, 0, shake.key_of(7), round_idx, -1, 0, 0, "cohort")
        assert cohort == tuple(sorted(sorted(range(3), key=words.__getitem__)[:2]))
