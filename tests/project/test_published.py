"""The settings of the published benchmarks are those of their sources, and FedProx's curves are those of its algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_published import Published, settings
from benchmark_stragglers import by_paper, ours, synthetic, training_loss


def test_rounds_with_stragglers_are_those_of_the_paper() -> None:
    clients = [(x[:50], y[:50]) for x, y in synthetic(1.0, 1.0, clients=12)]
    start, record = ours(clients, 2, 1.0, share=0.5, drop=False)
    for found, theirs in zip(record.weights, by_paper(start, clients, record.rounds, 1.0), strict=True):
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
    assert [sum(number < 20 for number in epochs.values()) for epochs in record.rounds] == [5, 5]
    assert training_loss(record.weights[-1], clients) < training_loss(start, clients)


def test_clients_of_mnist_have_two_digits_each_and_share_no_example() -> None:
    labels = np.arange(70_000) % 10
    clients = settings.two_digits(labels, np.random.default_rng(0))
    everyone = np.concatenate(clients)
    assert len(clients) == 1000
    assert len(everyone) == len(np.unique(everyone)) > 68_000
    assert all(set(labels[rows]) == {k % 10, (k + 1) % 10} for k, rows in enumerate(clients))


def test_ours_ends_where_the_loop_by_hand_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 40 students with 12 ratings each, in the columns of InstEval."""
    rng = np.random.default_rng(0)
    columns = [np.arange(480) % 40, *(rng.integers(0, high, 480) for high in (30, 5, 4, 6, 2)), rng.integers(1, 6, 480)]
    np.save(tmp_path / "ratings.npy", np.stack(columns, 1))
    monkeypatch.setenv("PUBLISHED_RATINGS", str(tmp_path / "ratings.npy"))
    work = Published("lr-ratings", rounds=2)
    work.cohort, work.data.batch_size = 40, 100  # one batch each, whose order does not matter
    ends = []
    for run in (work.by_hand, lambda: work.ours(engine="fabric")):
        assert work.measured(run)["examples_per_round"] == 40 * 11  # all clients, a twelfth of each held back
        ends.append(work.last.weight.detach())
    torch.testing.assert_close(ends[1], ends[0])
