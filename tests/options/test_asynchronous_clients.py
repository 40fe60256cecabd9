"""Asynchronous clients that are absent, slow or lost; the simulated clock; what tables and checkpoints hold."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from against_hand import Updates
from asynchronous_runs import FIVE, Missed, fitted
from engine_runs import variant
from federations import Plain, federate, same_bits

from fl_lightning import (
    Asynchronous,
    Availability,
    ClientTable,
    Clock,
    ConfigurationError,
    Faults,
    FedAsync,
    FedBuff,
    LocalTraining,
)


def test_slow_clients_do_all_their_steps_and_take_longer():
    updates, slow = Updates(), Availability(slow=0.4, slowness=3)
    fitted(5, callbacks=[updates], strategy=FedAsync(), asynchronous=Asynchronous(), availability=slow)
    fast = [k for k in range(5) if k not in slow.slow_clients(5, 0)]
    assert [u.client for each in updates.rounds for u in each] == [*fast, *fast[:2]]  # tick 1000, then 2000
    assert all(u.num_steps == 2 * -(-u.num_examples // 5) for each in updates.rounds for u in each)


def test_lost_updates_leave_their_place_to_others_and_are_reported():
    updates, missed = Updates(), Missed()
    fitted(
        6,
        callbacks=[updates, missed],
        strategy=FedBuff(),
        asynchronous=Asynchronous(4, 2),
        availability=Availability(drop_out=0.4, clock=Clock(between_jobs="exponential")),
        faults=Faults("skip"),
    )
    lost = Availability(drop_out=0.4)
    for t, each in enumerate(updates.rounds):
        assert len(each) == 2
        assert not any(lost.loses(u.client, 0, t - u.staleness) for u in each)
    assert missed.clients
    assert all(any(lost.loses(client, 0, begun) for begun in range(t + 1)) for t, client in missed.clients)


def test_a_buffer_that_nobody_can_fill_is_flushed_like_a_round_with_drop_outs():
    updates = Updates()
    fitted(
        4,
        callbacks=[updates],
        strategy=FedBuff(),
        asynchronous=Asynchronous(5, 5),
        availability=Availability(drop_out=0.4),
        faults=Faults("skip"),
    )
    lost = Availability(drop_out=0.4)
    for t, each in enumerate(updates.rounds):
        assert [u.client for u in each] == [k for k in range(5) if not lost.loses(k, 0, t)]
    assert min(map(len, updates.rounds)) < 5


def fails(self, batch, batch_idx):
    if self.trainer.num_training_batches == 5:
        raise RuntimeError("no power")
    return Plain.training_step(self, batch, batch_idx)


def test_a_client_that_fails_is_left_out():
    """Client 1, of 22 examples."""
    updates, missed, availability = Updates(), Missed(), Availability(clock=Clock(between_jobs="uniform"))
    settings = {"strategy": FedBuff(), "asynchronous": Asynchronous(5, 2), "faults": Faults("skip")}
    fitted(6, variant(training_step=fails), [updates, missed], availability=availability, **settings)
    rounds = [t for t, client in missed.clients if client == 1]
    assert len(rounds) == len(missed.clients) >= 2
    assert [len(each) for each in updates.rounds] == [1 if t in rounds else 2 for t in range(6)]


def test_slow_clients_need_no_engine_that_stops_between_steps():
    settings = {"local": LocalTraining(engine="stacked"), "availability": Availability(slow=0.5)}
    federate(Plain(), 1, asynchronous=Asynchronous(3, 2), strategy=FedBuff(), **settings)
    with pytest.raises(ConfigurationError, match=r"'federation.availability.slow' is checked between a client's steps"):
        federate(Plain(), 1, **settings)


def test_draws_have_mean_one_and_belong_to_client_and_job():
    for name in ("uniform", "exponential", "half_normal", "lognormal"):
        jobs = np.array([Clock(between_jobs=name).duration(k, t, [1] * 50, 7) for k in range(50) for t in range(80)]) / 1000
        variance = {"uniform": 1 / 12, "exponential": 1.0, "half_normal": np.pi / 2 - 1, "lognormal": np.e - 1}[name]
        assert abs(jobs.mean() - 1) < 5 * (variance / len(jobs)) ** 0.5
        assert 0.7 < jobs.var() / variance < 1.5
        assert jobs.min() >= 0.001
        clients = [[Clock(between_clients=name).duration(k, t, [1] * 9, 7) for t in range(3)] for k in range(9)]
        assert len({tuple(each) for each in clients}) == 9
        assert all(len(set(each)) == 1 for each in clients)
    sizes = [10, 30, 20]
    assert [Clock(ticks=100, by_examples=True).duration(k, 0, sizes, 0) for k in range(3)] == [50, 150, 100]
    assert Clock(ticks=1).duration(0, 0, sizes, 0, 0.1) == 1


def test_synchronous_rounds_wait_for_the_last_client():
    clock = Clock("lognormal", "uniform")
    updates = Updates()
    plain, _ = fitted(clients_per_round=3)
    found, run = fitted(callbacks=[updates], clients_per_round=3, availability=Availability(clock=clock))
    assert same_bits(found, plain)
    ticks = [max(clock.duration(u.client, t, FIVE, 0) for u in each) for t, each in enumerate(updates.rounds)]
    assert float(run.callback_metrics["federation/ticks"]) == sum(ticks)
    assert "federation/staleness" not in run.callback_metrics


def test_tables_show_the_staleness_of_each_update(tmp_path):
    updates = Updates()
    fitted(
        5,
        callbacks=[updates, ClientTable()],
        strategy=FedBuff(),
        asynchronous=Asynchronous(5, 2),
        availability=Availability(clock=Clock("lognormal")),
        flags={"default_root_dir": str(tmp_path)},
    )
    with Path(tmp_path / "client_rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [(int(row["round"]), int(row["client"]), int(float(row["staleness"]))) for row in rows]
    assert found == [(t, u.client, u.staleness) for t, each in enumerate(updates.rounds) for u in each]
    assert max(staleness for *_, staleness in found) > 0
