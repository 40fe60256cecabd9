"""Noise that nobody can subtract, and the account of it: kills, resumes, several ranks, what is in files."""

from __future__ import annotations

import base64
import json
import math
import secrets
import sys
from collections import Counter
from pathlib import Path

import launching
import numpy as np
import pytest
import shake
import torch
import wandb
from accountants import attained, gaussian_epsilon, poisson, renyi
from against_hand import Updates
from by_hand import B, flat
from federations import SIZES, Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from launching import launch
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from run_private import MODES, MOMENTS

from fl_lightning import (
    Availability,
    CheckpointError,
    ClientPrivacy,
    ConfigurationError,
    ExamplePrivacy,
    Faults,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    LocalTraining,
    PartialWork,
    TopK,
)
from fl_lightning.functional import derive_seed
from fl_lightning.options.privacy_account.ledger import PrivacyLedger

LEDGER = "privacy_ledger.jsonl"


def private(mode="central", rounds=1, folder="run", ckpt_path=None, callbacks=(), more=None, **flags):
    torch.manual_seed(0)
    module = Plain()
    root = {"default_root_dir": str(folder), "enable_checkpointing": True}
    settings = {"strategy": FedAvg("uniform"), "clients_per_round": 2, **MODES[mode](), **(more or {})}
    run = federate(
        module, rounds, every_round(Path(folder) / "c"), *callbacks, flags=root | flags, ckpt_path=ckpt_path, **settings
    )
    return module, {name: float(value) for name, value in run.logged_metrics.items()}


def lines(folder="run"):
    return [json.loads(line) for line in (Path(folder) / LEDGER).read_text().splitlines()]


# ---------------------------------------------------------------- nobody can subtract it


def test_noise_does_not_follow_from_the_seed():
    """What an owner of the checkpoint could do: draw the noise again from 'federation.seed', and take it away."""
    finals = {}
    for z in (1e-9, 1.0):
        torch.manual_seed(0)
        module = Plain()
        privacy = ClientPrivacy(0.5, z)
        federate(module, 1, strategy=FedAvg("uniform"), transforms=[privacy], seed=5, flags={"precision": "64-true"})
        finals[z] = flat(module.net)[0]
    draw = torch.Generator().manual_seed(derive_seed(5, 0, "server", "transform", 0))
    noise = torch.randn(len(finals[1.0]), generator=draw, dtype=torch.float64).numpy() * 0.5 / 3
    assert np.abs(finals[1.0] - noise - finals[1e-9]).max() > 0.05


@pytest.mark.parametrize("mode", MODES)
def test_two_starts_draw_other_noise(mode):
    one, other = (private(mode, folder=name, more={"clients_per_round": 3})[0] for name in ("one", "other"))
    assert not any((a == b).any() for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Cohorts(FederationCallback):
    def __init__(self):
        self.seen = []

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        self.seen.append(tuple(cohort))


def test_two_starts_draw_other_cohorts():
    """Of 12 rounds of 1 client of 3; with the seed alone all starts were the same."""
    starts = [Cohorts(), Cohorts()]
    for number, seen in enumerate(starts):
        private(rounds=12, folder=str(number), callbacks=[seen], more={"clients_per_round": 1})
    assert starts[0].seen != starts[1].seen


@pytest.mark.parametrize("mode", MODES)
def test_a_round_that_is_repeated_draws_other_noise_and_costs_again(mode, tmp_path):
    more, finals, name = {"clients_per_round": 3}, [], "examples" if mode == "examples" else "clients"
    private(mode, folder=tmp_path / "run", more=more)
    (tmp_path / "run/c/last.ckpt").rename(tmp_path / "first.ckpt")
    for _ in range(2):
        module, logged = private(mode, rounds=2, folder=tmp_path / "run", ckpt_path="first.ckpt", more=more)
        finals.append((weights(module), logged[f"federation/epsilon_of_{name}"]))
    assert not same_bits(finals[0][0], finals[1][0])
    assert finals[0][1] < finals[1][1]


@pytest.mark.usefixtures("_no_wandb")
def test_the_key_is_in_no_file(monkeypatch, tmp_path):
    key, asked = bytes(range(100, 132)), []

    def known(count):
        asked.append(count)
        return key[:count] if count == 32 else bytes(count)

    monkeypatch.setattr(secrets, "token_bytes", known)
    loggers = [CSVLogger(tmp_path / "run"), WandbLogger(save_dir=tmp_path / "run", offline=True)]
    more = {**MODES["examples"](), **MODES["central"]()}
    private(rounds=2, folder=tmp_path / "run", more=more, logger=loggers)
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


def test_two_ranks_hold_equal_weights(tmp_path):
    """Cohorts, noise at the server and in the steps: from one key, which the first rank sends."""
    script = str(Path(launching.__file__).with_name("run_private.py"))
    for mode in ("central", "examples"):
        folder = tmp_path / mode
        folder.mkdir()
        launch([script, "--folder", str(folder), "--mode", mode, "--ranks", "2"], 120, folder, ranks=2)
        one, other = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2))
        assert same_bits(one["weights"], other["weights"])
        assert [line["round"] for line in lines(folder)] == [0, 1, 2, 3]
        assert one["logged"].keys() == other["logged"].keys()
        for name in one["logged"]:
            if "epsilon" in name:
                assert one["logged"][name] == other["logged"][name]


# ---------------------------------------------------------------- what it costs


def of_examples(steps_and_rates):
    """By another library, up to its error; the noise is that of MODES."""
    return pytest.approx(max(poisson(2.0, rate, steps, 1e-3)[1] for steps, rate in steps_and_rates), rel=0.01, abs=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("mode", MODES)
def test_five_kills_in_one_round_are_paid_for(mode, tmp_path):
    """Four rounds, the third of which is begun six times: nine releases."""
    launch(
        [str(Path(launching.__file__).with_name("run_private.py")), "--folder", str(tmp_path), "--mode", mode], 240, tmp_path
    )
    logged = torch.load(tmp_path / "rank0.pt", weights_only=True)["logged"]
    written = lines(tmp_path)
    assert [line["round"] for line in written] == [0, 1, *[2] * (len(MOMENTS) + 1), 3]
    assert len({line["run"] for line in written}) == 1
    if mode == "central":
        spent = logged["federation/epsilon_of_clients"]
        assert attained(8.0, 2, 3, 9, 1e-3)[0] <= spent <= renyi(8.0, 2, 3, 9, 1e-3)
        assert spent > attained(8.0, 2, 3, 8, 1e-3)[1]
        return
    done = Counter()
    for line in written:
        done.update({int(client): count for client, count in line["sent" if mode == "local" else "steps"].items()})
    if mode == "local":
        assert sum(done.values()) == 2 * 9
        exact = gaussian_epsilon(4.0 / math.sqrt(max(done.values())), 1e-3)
        assert logged["federation/epsilon_of_clients"] == pytest.approx(exact, rel=1e-3)
        return
    rounds = {client: count / (2 * math.ceil(SIZES[client] / B)) for client, count in done.items()}
    assert sum(rounds.values()) == 2 * 9
    exact = of_examples((count, B / SIZES[client]) for client, count in done.items())
    assert logged["federation/epsilon_of_examples"] == exact


class Fails(FederationCallback):
    """Lets the client of 20 examples fail once a round, after some steps."""

    def __init__(self, after):
        self.after, self.left = after, 0

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        LEFT[:] = [self.after]


LEFT: list[int] = []
"""The steps at which a turn fails, each once."""


class Unlucky(Plain):
    def training_step(self, batch, batch_idx):
        if LEFT and self.trainer.num_training_batches == 4 and batch_idx == LEFT[-1]:
            LEFT.pop()
            raise RuntimeError("bad luck")
        return super().training_step(batch, batch_idx)


def test_an_attempt_that_failed_is_paid_for_and_the_next_draws_other_noise(tmp_path):
    """Two attempts are charged beforehand; what was not used comes back: 3 steps that failed and 4 that did not."""
    finals = {}
    for after in (99, 3):
        torch.manual_seed(0)
        module = Unlucky()
        privacy = ExamplePrivacy(1.0, 2.0, 1e-3)
        run = federate(
            module,
            2,
            Fails(after),
            local=LocalTraining(privacy=privacy),
            faults=Faults(retries=1),
            flags={"default_root_dir": str(tmp_path / str(after))},
        )
        steps = [8, 14][after == 3]
        exact = of_examples([(2 * 2, B / 7), (steps, B / 20), (2 * 3, B / 13)])
        assert float(run.logged_metrics["federation/epsilon_of_examples"]) == exact
        finals[after] = weights(module)
    charged, returned = lines(tmp_path / "3")[:2]
    assert charged["steps"] == {"0": 4, "1": 8, "2": 6}
    assert returned["steps"] == {"0": -2, "1": -1, "2": -3}


def test_the_noise_of_a_second_attempt_by_hand():
    """One step of all examples with a seed: noise of attempt 1, not of attempt 0 once more."""
    finals = {}
    for sigma in (1e-9, 1.0):
        torch.manual_seed(0)
        module = Twice()
        privacy = ExamplePrivacy(0.7, sigma, noise_seed=3)
        LEFT[:] = [1]
        local = LocalTraining(full_batch=True, privacy=privacy)
        federate(module, 1, partitioner=Consecutive([40]), local=local, faults=Faults(retries=1))
        finals[sigma] = flat(module)[0]
    noise = (finals[1.0] - finals[1e-9]) / (-0.1 * 0.7 / 40)
    by_hand = shake.normals(len(noise), shake.key_of(3), 0, 0, 0, 1, "noise of examples, period 0")
    np.testing.assert_allclose(noise, by_hand, atol=2e-3)


class Twice(Plain):
    """Fails at the end of its first fit."""

    def on_train_end(self):
        if LEFT:
            LEFT.pop()
            raise RuntimeError("the step is done, its noise drawn")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_epochs": 2},
        {"limit_train_batches": 0.5},
        {"limit_train_batches": 2, "max_epochs": 2},
        {"limit_train_batches": 9},
        {"max_steps": 3},
        {"max_epochs": -1, "max_steps": 5},
        {"full_batch": True, "max_epochs": 3},
        {"max_epochs": 4, "partial_work": PartialWork(0.7)},
    ],
)
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_what_is_charged_beforehand_is_what_is_done(settings, engine, tmp_path):
    """Nothing comes back: a line a round, with the clients' steps. Compression before it is no noisy message."""
    updates = Updates()
    local = LocalTraining(**settings, engine=engine, privacy=ExamplePrivacy(1.0, 2.0))
    more = {"availability": Availability(slow=0.4, slowness=2.0), "transforms": [TopK(0.5)]}
    federate(Plain(), 2, updates, local=local, flags={"default_root_dir": str(tmp_path)}, **more)
    written = lines(tmp_path)
    assert [set(line) for line in written] == [{"run", "round", "period", "steps", "rates", "noise"}] * 2
    for line, round_ in zip(written, updates.rounds, strict=True):
        assert line["noise"] == {"examples": 2.0}
        assert line["steps"] == {str(update.client): update.num_steps for update in round_}
        rates = {str(k): 1.0 if local.full_batch else B / size for k, size in enumerate(SIZES)}
        assert line["rates"] == pytest.approx(rates)


def test_clients_that_failed_send_nothing(tmp_path):
    class Broken(Plain):
        def training_step(self, batch, batch_idx):
            if self.trainer.num_training_batches == 4:
                raise RuntimeError("no")
            return super().training_step(batch, batch_idx)

    privacy = ClientPrivacy(0.5, 8.0, "local", 1e-3)
    flags = {"default_root_dir": str(tmp_path)}
    federate(Broken(), 2, transforms=[privacy], faults=Faults("skip"), flags=flags)
    first, returned, *_ = lines(tmp_path)
    assert first["sent"] == {"0": 1, "1": 1, "2": 1}
    assert returned["sent"] == {"1": -1}


def test_a_second_fit_goes_on_counting(tmp_path):
    """Of the same Trainer, with more rounds."""
    settings = {"strategy": FedAvg("uniform"), "clients_per_round": 2, **MODES["central"]()}
    run = trainer(2, FederatedOrchestrator(**settings), default_root_dir=str(tmp_path))
    module, data = Plain(), FederatedDataModule(Blobs(), Consecutive())
    run.fit(module, data)
    run.fit_loop.max_epochs = 3
    run.fit(module, data)
    assert [line["round"] for line in lines(tmp_path)] == [0, 1, 2]
    assert len({line["run"] for line in lines(tmp_path)}) == 1
    assert float(run.logged_metrics["federation/epsilon_of_clients"]) > attained(8.0, 2, 3, 2, 1e-3)[1]


def test_runs_that_share_a_folder_are_told_apart(tmp_path):
    first, second = (private(folder=tmp_path / "run")[1] for _ in range(2))
    assert first["federation/epsilon_of_clients"] == second["federation/epsilon_of_clients"]
    assert len({line["run"] for line in lines(tmp_path / "run")}) == 2


# ---------------------------------------------------------------- a resume


@pytest.fixture
def one_round(tmp_path):
    private(folder=tmp_path / "run")
    return tmp_path / "run"


def resume(folder, **more):
    return private(rounds=2, folder=folder, ckpt_path="run/c/last.ckpt", **more)


def test_without_a_ledger_no_resume(one_round):
    (one_round / LEDGER).unlink()
    with pytest.raises(
        CheckpointError, match=r"ledger '.*' does not exist, but the checkpoint was written after 1 lines, so the"
    ):
        resume(one_round)


def test_with_a_shorter_ledger_no_resume(one_round):
    before = (one_round / LEDGER).read_text()
    resume(one_round)
    (one_round / LEDGER).write_text(before)
    with pytest.raises(CheckpointError, match="has 1 lines of this run, but the checkpoint was written after 2"):
        private(rounds=3, folder=one_round, ckpt_path="run/c/last.ckpt")


def test_with_the_ledger_of_another_run_no_resume(one_round, tmp_path):
    private(rounds=3, folder=tmp_path / "other")
    (one_round / LEDGER).write_text((tmp_path / "other" / LEDGER).read_text())
    with pytest.raises(CheckpointError, match="has 0 lines of this run, but the checkpoint was written after 1"):
        resume(one_round)


def test_in_another_folder_the_ledger_must_be_copied(one_round, tmp_path):
    with pytest.raises(CheckpointError, match=r"elsewhere/privacy_ledger.jsonl' does not exist.*copy its ledger here"):
        resume(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    (tmp_path / "elsewhere" / LEDGER).write_text((one_round / LEDGER).read_text())
    _, logged = resume(tmp_path / "elsewhere")
    assert logged["federation/epsilon_of_clients"] > attained(8.0, 2, 3, 1, 1e-3)[1]
    assert len(lines(tmp_path / "elsewhere")) == 2


def test_a_line_that_was_cut_off_was_not_released(one_round):
    """A kill in the middle of a write: the line before is whole, the next one is not glued to the rest."""
    whole = (one_round / LEDGER).read_text()
    (one_round / LEDGER).write_text(whole + whole[: len(whole) // 2])
    resume(one_round)
    assert [line["round"] for line in lines(one_round)] == [0, 1]


def test_a_damaged_line_is_refused(one_round):
    whole = (one_round / LEDGER).read_text()
    for broken in ("{not json}\n", "3\n", '{"run": 1\n', "\x00\x00\n", '{"round": 1}\n'):
        (one_round / LEDGER).write_text(broken + whole)
        with pytest.raises(CheckpointError, match=r"Line 1 of '.*' is damaged, so the privacy spent by this run cannot be"):
            resume(one_round)


@pytest.mark.parametrize("first", [0, 1])
def test_the_largest_cohort_and_the_highest_rate_count_whenever_they_were(first, tmp_path):
    """Rounds of 1 and 5 of 10 clients, with full batches in one and batches of a tenth in the other: by other accountants."""
    rounds = [
        {"round": 0, "drawn": 1, "steps": {"0": 4}, "rates": {"0": 0.1}},
        {"round": 1, "drawn": 5, "steps": {"0": 4}, "rates": {"0": 1.0}},
    ]
    ledger = PrivacyLedger(tmp_path, "run")
    for line in (rounds[first], rounds[1 - first]):
        ledger.append(line | {"noise": {"clients": 4.0, "examples": 3.0}})
    spending, _ = ledger.read()
    data = FederatedDataModule(Blobs(), Consecutive([4] * 10))
    data.setup("fit")
    assert ClientPrivacy(1.0, 4.0).spent(spending, data) >= attained(4.0, 5, 10, 2, 1e-5)[0]
    both = ExamplePrivacy(1.0, 3.0).spent(spending, data)
    assert both == pytest.approx(gaussian_epsilon(3 / math.sqrt(8), 1e-5), rel=0.01)  # eight steps at the rate 1


def test_a_ledger_that_cannot_be_written_stops_the_round(tmp_path):
    seen = Cohorts()
    started = []

    class Started(FederationCallback):
        def on_client_start(self, trainer, pl_module, round_idx, client):
            started.append(client)

    (tmp_path / "run" / LEDGER).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"ledger '.*' cannot be used \(.*\), and a round cannot begin without it"):
        private(folder=tmp_path / "run", callbacks=[seen, Started()])
    assert not started


def test_what_is_released_is_on_the_disk_before_anyone_trains(tmp_path, monkeypatch):
    events = []

    class Watch(FederationCallback):
        def on_client_start(self, trainer, pl_module, round_idx, client):
            events.append(("trains", len(lines(tmp_path / "run"))))

    import os

    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append(("synced", 0)), sync(descriptor))[1])
    private(folder=tmp_path / "run", callbacks=[Watch()])
    assert events[0] == ("synced", 0)
    assert ("trains", 1) in events
    assert ("trains", 0) not in events


def test_a_bucket_holds_no_ledger():
    with pytest.raises(
        ConfigurationError, match=r"'trainer\.default_root_dir' is memory://bucket, but the privacy ledger must"
    ):
        federate(Plain(), 1, strategy=FedAvg("uniform"), flags={"default_root_dir": "memory://bucket"}, **MODES["central"]())


# ---------------------------------------------------------------- a simulation


@pytest.mark.parametrize("noise", ["central", "local"])
def test_with_a_noise_seed_noise_is_by_hand_and_costs_once(noise, tmp_path, recwarn):
    """Every start draws the same noise, so that a repeated round releases nothing new; there is no ledger."""
    finals = {}
    for name, z in (("without", 1e-9), ("one", 1.0), ("other", 1.0)):
        more = {"transforms": [ClientPrivacy(0.5, z, noise, 1e-3, noise_seed=7)], "clients_per_round": 3}
        module, logged = private(folder=tmp_path / "run", more=more, precision="64-true")
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

    first = logged["federation/epsilon_of_clients"]
    more = {"transforms": [ClientPrivacy(0.5, 1.0, noise, 1e-3, noise_seed=7)], "clients_per_round": 3}
    spent = [
        private(rounds=2, folder=tmp_path / "again", ckpt_path="run/c/last.ckpt", more=more, precision="64-true")[1]
        for _ in range(2)
    ]
    assert spent[0]["federation/epsilon_of_clients"] == spent[1]["federation/epsilon_of_clients"] > first
    exact = gaussian_epsilon(0.5 / math.sqrt(2), 1e-3)
    assert spent[0]["federation/epsilon_of_clients"] == pytest.approx(exact, rel=1e-3)


def test_without_a_noise_seed_nothing_is_simulated(tmp_path, recwarn):
    _, logged = private(folder=tmp_path / "run")
    assert "federation/noise_is_simulated" not in logged
    assert not any("noise_seed" in str(warning.message) for warning in recwarn)


def test_cohorts_of_a_noise_seed_by_hand(tmp_path):
    seen = Cohorts()
    more = {"transforms": [ClientPrivacy(0.5, 1.0, noise_seed=7)]}
    private(rounds=5, folder=tmp_path / "run", callbacks=[seen], more=more)
    for round_idx, cohort in enumerate(seen.seen):
        ((*words,),) = shake.words(3, 0, shake.key_of(7), round_idx, -1, 0, 0, "cohort")
        assert cohort == tuple(sorted(sorted(range(3), key=words.__getitem__)[:2]))


def test_one_seed_for_all_noise():
    local = LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))
    transforms = [ClientPrivacy(1.0, 1.0, noise_seed=7)]
    with pytest.raises(
        ConfigurationError, match=r"'noise_seed' of ClientPrivacy is 7, but 'noise_seed' of .* is None\. Set both to"
    ):
        federate(Plain(), 1, strategy=FedAvg("uniform"), local=local, transforms=transforms)


def test_a_simulation_does_not_go_on_with_a_key(tmp_path):
    more = {"transforms": [ClientPrivacy(0.5, 8.0, delta=1e-3, noise_seed=7)]}
    private(folder=tmp_path / "run", more=more)
    with pytest.raises(CheckpointError, match="no single epsilon covers both"):
        resume(tmp_path / "run")
