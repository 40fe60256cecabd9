"""The settings of the published benchmarks are those of their sources, and FedProx's curves are those of its algorithm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_published import Published, settings
from benchmark_stragglers import by_paper, ours, synthetic, training_loss


@pytest.fixture
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 students with 12 ratings each, in the columns of InstEval."""
    rng = np.random.default_rng(0)
    columns = [np.arange(480) % 40, *(rng.integers(0, high, 480) for high in (30, 5, 4, 6, 2)), rng.integers(1, 6, 480)]
    np.save(tmp_path / "ratings.npy", np.stack(columns, 1))
    monkeypatch.setenv("PUBLISHED_RATINGS", str(tmp_path / "ratings.npy"))


@pytest.mark.parametrize(("mu", "drop"), [(0.0, True), (0.0, False), (1.0, False)])
def test_rounds_with_stragglers_are_those_of_the_paper(mu: float, drop: bool) -> None:
    clients = [(x[:50], y[:50]) for x, y in synthetic(1.0, 1.0, clients=12)]
    start, record = ours(clients, 2, mu, share=0.5, drop=drop)
    for found, theirs in zip(record.weights, by_paper(start, clients, record.rounds, mu), strict=True):
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
    for epochs in record.rounds:
        short = [number for number in epochs.values() if number < 20]
        assert len(epochs) == (5 if drop else 10)
        assert len(short) == (0 if drop else 5)
        assert all(number >= 1 for number in short)
    assert training_loss(record.weights[-1], clients) < training_loss(start, clients)


def test_synthetic_models_and_features_differ_by_alpha_and_beta() -> None:
    clients = synthetic(0.0, 5.0, clients=200)
    assert min(len(y) for _, y in clients) >= 45
    means = np.array([x.mean() for x, _ in clients])
    assert means.std() == pytest.approx(5, rel=0.2)  # of 200 draws: three standard errors
    within = np.concatenate([x - x.mean(0) for x, _ in clients]).var(0)
    np.testing.assert_allclose(within, np.arange(1, 61) ** -1.2, rtol=0.15)


def test_clients_of_mnist_have_two_digits_each_and_share_no_example() -> None:
    labels = np.arange(70_000) % 10
    clients = settings.two_digits(labels, np.random.default_rng(0))
    everyone = np.concatenate(clients)
    assert len(clients) == 1000
    assert len(everyone) == len(np.unique(everyone)) > 68_000
    assert all(set(labels[rows]) == {k % 10, (k + 1) % 10} for k, rows in enumerate(clients))
    assert max(map(len, clients)) > 20 * np.median([len(rows) for rows in clients])


@pytest.mark.usefixtures("ratings")
def test_ours_ends_where_the_loop_by_hand_does() -> None:
    work = Published("lr-ratings", rounds=2)
    work.cohort, work.data.batch_size = 40, 100  # one batch each, whose order does not matter
    ends = []
    for run in (work.by_hand, lambda: work.ours(engine="fabric"), lambda: work.ours(engine="stacked")):
        assert work.measured(run)["examples_per_round"] == 40 * 11  # all clients, a twelfth of each held back
        ends.append(work.last.weight.detach())
    torch.testing.assert_close(ends[1], ends[0])
    torch.testing.assert_close(ends[2], ends[0])


@pytest.mark.usefixtures("ratings")
def test_peers_load_the_same_examples() -> None:
    script = "import json, workload; w = workload.load('lr-ratings'); print(json.dumps([len(y) for _, y in w.clients]))"
    peers = Path(settings.__file__).parent
    done = subprocess.run([sys.executable, "-c", script], cwd=peers, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == Published("lr-ratings").sizes


def test_the_network_of_pfl_has_its_parameters() -> None:
    expected = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 14 * 14 + 1) * 128 + 129 * 10
    assert sum(p.numel() for p in settings.simple_cnn().parameters()) == expected
