"""Noise that nobody can subtract, and noise of a simulation."""

from __future__ import annotations

import base64
import math
import secrets
from pathlib import Path

import numpy as np
import pytest
import shake
import torch
import wandb
from accountants import gaussian_epsilon
from by_hand import flat
from federations import Cohorts, Plain, federate, same_bits, weights
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from private_runs import LEDGER, NO_NOISE, last, private
from run_private import MODES

from fl_lightning import ClientPrivacy, FedAvg
from fl_lightning.functional import derive_seed


def test_noise_does_not_follow_from_the_seed():
    """What an owner of the checkpoint could do: draw the noise again from 'federation.seed', and take it away."""
    finals = {}
    for z in (NO_NOISE, 1.0):
        torch.manual_seed(0)
        module = Plain()
        privacy = ClientPrivacy(0.5, z)
        federate(module, 1, strategy=FedAvg("uniform"), transforms=[privacy], seed=5, flags={"precision": "64-true"})
        finals[z] = flat(module.net)[0]
    draw = torch.Generator().manual_seed(derive_seed(5, 0, "server", "transform", 0))
    noise = torch.randn(len(finals[1.0]), generator=draw, dtype=torch.float64).numpy() * 0.5 / 3
    assert np.abs(finals[1.0] - noise - finals[NO_NOISE]).max() > 0.05


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
        privacy = ClientPrivacy(0.5, z, noise, 1e-3, noise_seed=7)
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
    private(tmp_path, 5, callbacks=[seen], transforms=[ClientPrivacy(0.5, 1.0, noise_seed=7)])
    for round_idx, cohort in enumerate(seen.seen):
        ((*words,),) = shake.words(3, 0, shake.key_of(7), round_idx, -1, 0, 0, "cohort")
        assert cohort == tuple(sorted(sorted(range(3), key=words.__getitem__)[:2]))
