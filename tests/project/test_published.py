"""The settings of the published benchmarks are those of their sources, and FedProx's curves are those of its algorithm."""

import numpy as np
from benchmark_published import settings
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
