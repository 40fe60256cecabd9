"""The account of released noise: what it costs, kills, and resumes."""

import math
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import launching
import numpy as np
import pytest
import shake
import torch
from accountants import attained, gaussian_epsilon, poisson, renyi
from against_hand import Updates
from by_hand import B, flat
from engine_runs import variant
from federations import SIZES, Blobs, Consecutive, Plain, federate, ready, trainer
from launching import launch
from private_runs import LEDGER, LEFT, NO_NOISE, Fails, Unlucky, fit, last, lines, private
from run_private import MODES, MOMENTS

import fl_lightning as fl
from fl_lightning.functional.spending import Spendings
from fl_lightning.options.privacy_account.server import ledger_in


def of_examples(steps_and_rates):
    """By another library, up to its error; the noise is that of MODES."""
    return pytest.approx(max(poisson(2.0, rate, steps, 1e-3)[1] for steps, rate in steps_and_rates), rel=0.01, abs=0.02)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("mode", ["central", "examples"])
def test_five_kills_in_one_round_are_paid_for(mode, tmp_path):
    """Four rounds, the third of which is begun six times: nine releases."""
    script = str(Path(launching.__file__).with_name("run_private.py"))
    launch([script, "--folder", str(tmp_path), "--mode", mode], 240, tmp_path)
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
        done.update({int(client): count for client, count in line["steps"].items()})
    rounds = {client: count / (2 * math.ceil(SIZES[client] / B)) for client, count in done.items()}
    assert sum(rounds.values()) == 2 * 9
    assert logged["federation/epsilon_of_examples"] == of_examples((n, B / SIZES[k]) for k, n in done.items())


def test_an_attempt_that_failed_is_paid_for(tmp_path):
    """Two attempts are charged beforehand; what was not used comes back: 3 steps that failed and 4 that did not."""
    privacy = fl.ExamplePrivacy(1.0, 2.0, 1e-3)
    settings = {"local": fl.LocalTraining(privacy=privacy), "faults": fl.Faults(retries=1)}
    for after in (99, 3):
        _, logged = fit(tmp_path / str(after), 2, Fails(after), module=Unlucky(), **settings)
        steps = [8, 14][after == 3]
        exact = of_examples([(2 * 2, B / 7), (steps, B / 20), (2 * 3, B / 13)])
        assert logged["federation/epsilon_of_examples"] == exact
    charged, returned = lines(tmp_path / "3")[:2]
    assert charged["steps"] == {"0": 4, "1": 8, "2": 6}
    assert returned["steps"] == {"0": -2, "1": -1, "2": -3}


def fails_once(self):
    if LEFT:
        LEFT.pop()
        raise RuntimeError("the step is done, its noise drawn")


def test_the_noise_of_a_second_attempt_by_hand():
    """One step of all examples with a seed: noise of attempt 1, not of attempt 0 once more."""
    finals = {}
    for sigma in (NO_NOISE, 1.5):
        torch.manual_seed(0)
        module = variant(on_train_end=fails_once)()
        LEFT[:] = [1]
        local = fl.LocalTraining(full_batch=True, privacy=fl.ExamplePrivacy(0.7, sigma, noise_seed=3))
        federate(module, 1, partitioner=Consecutive([40]), local=local, faults=fl.Faults(retries=1))
        finals[sigma] = flat(module)[0]
    noise = (finals[1.5] - finals[NO_NOISE]) / (-0.1 * 1.5 * 0.7 / 40)
    by_hand = shake.normals(len(noise), shake.key_of(3), 0, 0, 0, 1, "noise of examples, period 0")
    np.testing.assert_allclose(noise, by_hand, atol=2e-3)


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("fabric", {"limit_train_batches": 0.5}),
        ("fabric", {"max_epochs": -1, "max_steps": 5}),
        ("fabric", {"full_batch": True, "max_epochs": 3}),
        ("trainer", {"max_epochs": 4, "partial_work": fl.PartialWork(0.7)}),
    ],
)
def test_what_is_charged_beforehand_is_what_is_done(settings, engine, tmp_path):
    """Nothing comes back: a line a round, with the clients' steps. Compression before it is no noisy message."""
    updates = Updates()
    local = fl.LocalTraining(**settings, engine=engine, privacy=fl.ExamplePrivacy(1.0, 2.0))
    more = {"availability": fl.Availability(slow=0.4, slowness=2.0), "transforms": [fl.TopK(0.5)]}
    federate(Plain(), 2, updates, local=local, flags={"default_root_dir": str(tmp_path)}, **more)
    written = lines(tmp_path)
    assert [set(line) for line in written] == [{"run", "round", "period", "steps", "rates", "noise"}] * 2
    for line, round_ in zip(written, updates.rounds, strict=True):
        assert line["noise"] == {"examples": 2.0}
        assert line["steps"] == {str(update.client): update.num_steps for update in round_}
        rates = {str(k): 1.0 if local.full_batch else B / size for k, size in enumerate(SIZES)}
        assert line["rates"] == pytest.approx(rates)


def fails_always(self, batch, batch_idx):
    if self.trainer.num_training_batches == 4:
        raise RuntimeError("no")
    return Plain.training_step(self, batch, batch_idx)


def test_clients_that_failed_send_nothing(tmp_path):
    privacy = fl.ClientPrivacy(0.5, 8.0, "local", 1e-3)
    fit(tmp_path, 2, module=variant(training_step=fails_always)(), transforms=[privacy], faults=fl.Faults("skip"))
    first, returned, *_ = lines(tmp_path)
    assert first["sent"] == {"0": 1, "1": 1, "2": 1}
    assert returned["sent"] == {"1": -1}


def test_a_second_fit_goes_on_counting(tmp_path):
    """Of the same Trainer, with more rounds."""
    settings = {"strategy": fl.FedAvg("uniform"), "clients_per_round": 2, **MODES["central"]()}
    run = trainer(2, fl.FederatedOrchestrator(**settings), default_root_dir=str(tmp_path))
    module, data = Plain(), fl.FederatedDataModule(Blobs(), Consecutive())
    run.fit(module, data)
    run.fit_loop.max_epochs = 3
    run.fit(module, data)
    assert [line["round"] for line in lines(tmp_path)] == [0, 1, 2]
    assert len({line["run"] for line in lines(tmp_path)}) == 1
    assert float(run.logged_metrics["federation/epsilon_of_clients"]) > attained(8.0, 2, 3, 2, 1e-3)[1]


def test_runs_that_share_a_folder_are_told_apart(tmp_path, recwarn):
    first, second = (private(tmp_path)[1] for _ in range(2))
    assert first["federation/epsilon_of_clients"] == second["federation/epsilon_of_clients"]
    assert len({line["run"] for line in lines(tmp_path)}) == 2
    assert "federation/noise_is_simulated" not in first  # without a noise seed
    assert not any("noise_seed" in str(warning.message) for warning in recwarn)


DAMAGED = [broken + "%s" for broken in ("{not json}\n", "3\n", '{"run": 1\n', "\x00\x00\n", '{"round": 1}\n')]


def test_without_its_whole_ledger_no_run_is_resumed(tmp_path):
    private(tmp_path / "other", 3)
    folder = tmp_path / "run"
    private(folder)
    whole = (folder / LEDGER).read_text()
    for content, message in (
        (None, r"ledger '.*' does not exist, but the checkpoint was written after 1 lines, so the"),
        ((tmp_path / "other" / LEDGER).read_text(), "has 0 lines of this run, but the checkpoint was written after 1"),
        *((text % whole, r"Line 1 of the ledger '.*' is damaged, so what was spent is not known") for text in DAMAGED),
    ):
        (folder / LEDGER).unlink()
        if content is not None:
            (folder / LEDGER).write_text(content)
        with pytest.raises(fl.CheckpointError, match=message):
            private(folder, 2, ckpt_path=last(folder))
        (folder / LEDGER).write_text(whole)
    private(folder, 2, ckpt_path=last(folder))
    (folder / LEDGER).write_text(whole)
    with pytest.raises(fl.CheckpointError, match="has 1 lines of this run, but the checkpoint was written after 2"):
        private(folder, 3, ckpt_path=last(folder))


def test_without_a_folder_of_its_own_a_run_leaves_no_ledger_in_the_current_one(tmp_path):
    """``Trainer()`` is one without a folder: its root is the current folder."""
    settings = {"strategy": fl.FedAvg("uniform"), "clients_per_round": 2, **MODES["central"]()}
    federate(Plain(), 1, flags={"default_root_dir": None}, **settings)
    assert not (tmp_path / LEDGER).exists()
    assert [line["round"] for line in lines(tmp_path / "lightning_logs")] == [0]


def test_in_another_folder_the_ledger_must_be_copied(tmp_path):
    private(tmp_path / "run")
    resume = {"rounds": 2, "folder": tmp_path / "elsewhere", "ckpt_path": last(tmp_path / "run")}
    with pytest.raises(fl.CheckpointError, match=r"elsewhere/privacy_ledger.jsonl' does not exist.*copy its ledger here"):
        private(**resume)
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    (tmp_path / "elsewhere" / LEDGER).write_text((tmp_path / "run" / LEDGER).read_text())
    assert private(**resume)[1]["federation/epsilon_of_clients"] > attained(8.0, 2, 3, 1, 1e-3)[1]
    assert len(lines(tmp_path / "elsewhere")) == 2


def test_a_line_that_was_cut_off_was_not_released(tmp_path):
    """A kill in the middle of a write: the line before is whole, the next one is not glued to the rest."""
    folder = tmp_path / "run"
    private(folder=folder)
    whole = (folder / LEDGER).read_text()
    (folder / LEDGER).write_text(whole + whole[: len(whole) // 2])
    private(folder=folder, rounds=2, ckpt_path=last(folder))
    assert [line["round"] for line in lines(folder)] == [0, 1]
    (folder / LEDGER).write_text((folder / LEDGER).read_text()[:-1])  # without its end alone, a line is whole
    private(folder=folder, rounds=3, ckpt_path=last(folder))
    assert [line["round"] for line in lines(folder)] == [0, 1, 2]


def test_runs_that_write_at_the_same_time_lose_no_line(tmp_path):
    """A line that another run is writing is not one that a kill cut off."""

    def write(run: int) -> None:
        ledger_in(tmp_path).append({"run": str(run), "noise": {}, "sent": {"0": 1}, "long": "x" * 200_000})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(48)))
    assert sorted(int(entry["run"]) for entry in ledger_in(tmp_path).read()) == list(range(48))


@pytest.mark.parametrize("first", [0, 1])
def test_the_largest_cohort_and_the_highest_rate_count_whenever_they_were(first, tmp_path):
    """Rounds of 1 and 5 of 10 clients, with full batches in one and batches of a tenth in the other: by other accountants."""
    rounds = [
        {"round": 0, "drawn": 1, "steps": {"0": 4}, "rates": {"0": 0.1}},
        {"round": 1, "drawn": 5, "steps": {"0": 4}, "rates": {"0": 1.0}},
    ]
    ledger, spending = ledger_in(tmp_path), Spendings()
    for line in (rounds[first], rounds[1 - first]):
        ledger.append(line | {"run": "run", "noise": {"clients": 4.0, "examples": 3.0}})
    for entry in ledger.read():
        spending.of(entry["noise"]).add(entry)
    data = ready(fl.FederatedDataModule(Blobs(), Consecutive([4] * 10)))
    assert fl.ClientPrivacy(1.0, 4.0).spent(spending, data) >= attained(4.0, 5, 10, 2, 1e-5)[0]
    both = fl.ExamplePrivacy(1.0, 3.0).spent(spending, data)
    assert both == pytest.approx(gaussian_epsilon(3 / math.sqrt(8), 1e-5), rel=0.01)  # eight steps at the rate 1


class Started(fl.FederationCallback):
    """Notes how many lines the ledger has when a client begins."""

    def __init__(self, folder):
        self.folder, self.events = folder, []

    def on_client_start(self, trainer, pl_module, round_idx, client):
        self.events.append(("trains", len(lines(self.folder))))


def test_a_ledger_that_cannot_be_written_stops_the_round(tmp_path):
    folder = tmp_path / "run"
    started = Started(folder)
    (folder / LEDGER).mkdir(parents=True)
    with pytest.raises(
        fl.CheckpointError, match=r"ledger '.*' cannot be used \(.*\), and nothing is released without a line in it"
    ):
        private(folder=folder, callbacks=[started])
    assert not started.events


def test_what_is_released_is_on_the_disk_before_anyone_trains(tmp_path, monkeypatch):
    watch, sync = Started(tmp_path), os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (watch.events.append(("synced", 0)), sync(descriptor))[1])
    private(tmp_path, callbacks=[watch])
    assert watch.events[0] == ("synced", 0)
    assert ("trains", 1) in watch.events
    assert ("trains", 0) not in watch.events
