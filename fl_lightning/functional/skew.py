"""Skew labels or sizes, vectorised over clients: 100,000 clients over 10 million labels take seconds."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.functional.partition import Partition, even_sizes, offsets

Ints = NDArray[np.int64]


def dirichlet_labels(labels: Tensor, num_clients: int, beta: float, capped: bool, rng: np.random.Generator) -> Partition:
    """Spread each class over the clients by shares from a symmetric Dirichlet distribution (Li et al. 2022, NIID-Bench).

    Args:
        labels: the class of each example, int64, shape (n,).
        num_clients: the number of clients K.
        beta: the concentration, > 0; smaller values concentrate a class on fewer clients.
        capped: whether a client that already holds n / K examples gets no more classes.
        rng: draws shares and examples.
    """
    values = labels.numpy()
    grouped, sizes = _by_class(values, rng)
    owners = np.empty(len(values), dtype=np.int64)
    held = np.zeros(num_clients, dtype=np.int64)
    begin = 0
    for size in sizes[sizes > 0]:
        # The shares of some clients, normalised, follow Dir(beta) over those clients.
        open_ = held * num_clients < len(values) if capped else np.ones(num_clients, dtype=bool)
        shares = np.zeros(num_clients)
        shares[open_] = rng.dirichlet(np.full(int(open_.sum()), beta))
        counts = cut(shares, int(size))
        owners[grouped[begin : begin + size]] = np.repeat(np.arange(num_clients), counts)
        held += counts
        begin += size
    return Partition.of_owners(torch.from_numpy(owners), num_clients)


def dirichlet_sizes(num_examples: int, num_clients: int, beta: float, rng: np.random.Generator) -> Partition:
    """Draw uniform samples whose sizes follow a symmetric Dirichlet distribution (NIID-Bench)."""
    counts = cut(rng.dirichlet(np.full(num_clients, beta)), num_examples)
    return Partition(torch.from_numpy(rng.permutation(num_examples)), offsets(torch.from_numpy(counts)))


def label_shards(labels: Tensor, num_clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Sort by class, cut into K * s pieces whose sizes differ by at most one, and deal each client s (McMahan et al. 2017)."""
    grouped, _ = _by_class(labels.numpy(), rng)
    shards = num_clients * per_client
    counts = even_sizes(len(grouped), shards).numpy()
    owner_of_shard = np.empty(shards, dtype=np.int64)
    owner_of_shard[rng.permutation(shards)] = np.repeat(np.arange(num_clients), per_client)
    owners = np.empty(len(grouped), dtype=np.int64)
    owners[grouped] = np.repeat(owner_of_shard, counts)
    return Partition.of_owners(torch.from_numpy(owners), num_clients)


def classes_per_client(labels: Tensor, num_clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Give every client ``per_client`` classes; the holders of a class share its examples evenly.

    Classes are dealt from shuffled decks, so that the numbers of holders of any two classes differ by at most one.
    If K * per_client is below the number of classes, the classes that are not dealt stay unused.
    """
    values = labels.numpy()
    grouped, sizes = _by_class(values, rng)
    present = np.flatnonzero(sizes)
    hands = deal(num_clients, per_client, len(present), rng)
    owners = np.full(len(values), -1, dtype=np.int64)
    begin = np.concatenate([[0], np.cumsum(sizes[present])])
    by_class = np.argsort(hands.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(hands.ravel(), minlength=len(present)))
    for position in range(len(present)):
        holders = by_class[ends[position - 1] if position else 0 : ends[position]] // per_client
        if not len(holders):
            continue
        size = int(begin[position + 1] - begin[position])
        counts = even_sizes(size, len(holders)).numpy()
        owners[grouped[begin[position] : begin[position + 1]]] = np.repeat(rng.permutation(holders), counts)
    return Partition.of_owners(torch.from_numpy(owners), num_clients)


def deal(num_clients: int, per_client: int, num_classes: int, rng: np.random.Generator) -> Ints:
    """Deal different classes to each client from shuffled decks of all classes, shape (K, per_client)."""
    hands = np.empty((num_clients, per_client), dtype=np.int64)
    deck = np.zeros(0, dtype=np.int64)
    for hand in hands:
        if len(deck) < per_client:  # a new deck, with the classes left in the old one last
            fresh = rng.permutation(num_classes)
            had = np.isin(fresh, deck)
            deck = np.concatenate([deck, fresh[~had], fresh[had]])
        hand[:] = deck[:per_client]
        deck = deck[per_client:]
    return hands


def cut(shares: NDArray[np.float64], size: int) -> Ints:
    """Return whole numbers that add up to ``size``, each within one of its share, and 0 for a share of 0."""
    ends = np.cumsum(shares)
    whole: Ints = np.floor(ends / ends[-1] * size).astype(np.int64)
    counts: Ints = np.diff(whole, prepend=0)
    return counts


def _by_class(labels: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return indices sorted by class, shuffled within each, and the sizes of the classes."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")], np.bincount(labels)
