"""Clients that are simulated to be slow, to come and go, or to be lost."""

from __future__ import annotations

import csv
from itertools import islice

import lightning as L
import pytest
from against_hand import Updates
from federations import Blobs, Plain, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fl_lightning import Availability, FailureLog, FederatedDataModule, FederatedOrchestrator, FederationCallback, LocalTraining
from fl_lightning.functional import draw_cohort


class Heard(FederationCallback):
    def __init__(self):
        self.failures = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.failures.append((failure.round_idx, failure.client, failure.cause, failure.attempts))


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_slow_client_does_the_first_steps_of_a_fast_one(engine):
    """Two epochs are 4, 8 and 6 steps; all clients are six times slower: 1 each; three times: 1, 2 and 2."""
    finals = []
    for slowness, steps in ((6.0, -1), (1.0, 1)):
        L.seed_everything(3, verbose=False)
        module, slow = Plain(), Availability(slow=1.0, slowness=slowness)
        federate(module, 3, local=LocalTraining(engine=engine, max_epochs=2, max_steps=steps), availability=slow)
        finals.append(weights(module))
    assert same_bits(*finals)
    updates, slow = Updates(), Availability(slow=1.0, slowness=3.0)
    federate(Plain(), 2, updates, availability=slow, local=LocalTraining(engine=engine, max_epochs=2))
    assert [[update.num_steps for update in r] for r in updates.rounds] == [[1, 2, 2]] * 2


@given(st.integers(1, 60), st.floats(0.05, 1), st.floats(0.05, 1), st.integers(0, 99), st.integers(0, 20))
def test_who_is_there(clients, leave, back, seed, round_idx):
    availability = Availability(leave=leave, come_back=back, drop_out=0.3)
    there = next(islice(availability.present(clients, seed), round_idx, None))
    assert there == sorted(set(there))
    assert set(there) <= set(range(clients))
    assert round_idx or len(there) == clients
    cohort = draw_cohort(clients, 0.5, seed, round_idx, there)
    assert set(cohort) <= set(there)
    assert len(cohort) == min(len(there), max(1, round(0.5 * clients)))
    assert availability.dropped_out(cohort, seed, round_idx) <= set(cohort)


def test_shares_in_the_long_run():
    availability = Availability(leave=0.1, come_back=0.3, drop_out=0.3, slow=0.25)
    there = [len(next(islice(availability.present(100, seed), 60, None))) for seed in range(40)]
    assert sum(there) / 4000 == pytest.approx(0.3 / 0.4, abs=0.02)
    lost = [len(availability.dropped_out(range(100), 0, r)) for r in range(100)]
    assert sum(lost) / 10_000 == pytest.approx(0.3, abs=0.02)
    assert len(availability.slow_clients(100, 0)) == 25


def test_drop_outs_are_told_and_do_not_train(tmp_path):
    heard, updates, x_y = Heard(), Updates(), Blobs().train
    sets = {name: TensorDataset(*(t[k : 30 + k] for t in x_y)) for k, name in enumerate("abc")}
    data = FederatedDataModule.from_clients(sets, val=TensorDataset(*Blobs().val), batch_size=5)
    federation = FederatedOrchestrator(availability=Availability(drop_out=0.4), local=LocalTraining())
    run = trainer(6, federation, heard, updates, FailureLog(), default_root_dir=tmp_path)
    run.fit(Plain(), data)
    assert heard.failures
    for round_idx, clients in enumerate([u.client for u in r] for r in updates.rounds):
        lost = [client for r, client, *_ in heard.failures if r == round_idx]
        assert sorted(lost + clients) == [0, 1, 2]
    assert {cause for _, _, cause, _ in heard.failures} == {"dropped out (simulated)"}
    assert float(run.callback_metrics["federation/failures"]) == sum(r == 5 for r, *_ in heard.failures)
    with (tmp_path / "failures.csv").open(newline="") as file:
        rows = [(int(row["round"]), row["client"], row["attempts"], row["cause"]) for row in csv.DictReader(file)]
    assert rows == [(r, "abc"[client], "0", "dropped out (simulated)") for r, client, *_ in heard.failures]


def test_a_resumed_run_lists_its_failures_once(tmp_path):
    (tmp_path / "failures.csv").write_text("round,client,attempts,cause\n0,1,1,x\n1,2,1,y\n5,0,1,z\n")
    log = FailureLog()
    run = trainer(3, log, default_root_dir=tmp_path)
    run.fit_loop.epoch_progress.current.processed = run.fit_loop.epoch_progress.current.completed = 2
    log.on_train_start(run, Plain())
    assert (tmp_path / "failures.csv").read_text().split() == ["round,client,attempts,cause", "0,1,1,x", "1,2,1,y"]
