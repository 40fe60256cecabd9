"""Who takes part in a round, and which rank trains whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator


def cohort_size(num_clients: int, clients_per_round: int | float) -> int:
    """Clients in a round: a float in (0, 1] is a fraction of all (rounded, at least one), an int a number.

    Raises:
        ConfigurationError: for a number above ``num_clients`` or below 1, or a fraction outside (0, 1].
    """
    if isinstance(clients_per_round, int):
        wanted = f"a number of clients from 1 to {num_clients} (there are {num_clients} clients)"
        require(1 <= clients_per_round <= num_clients, "federation.clients_per_round", wanted, clients_per_round)
        return clients_per_round
    wanted = "a fraction above 0 and at most 1.0, or a whole number of clients"
    require(0 < clients_per_round <= 1, "federation.clients_per_round", wanted, clients_per_round)
    return max(1, round(clients_per_round * num_clients))


def draw_cohort(
    num_clients: int,
    clients_per_round: int | float,
    seed: int,
    round_idx: int,
    present: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The clients of a round, ascending, uniformly without replacement; depends on (seed, round_idx) alone.

    Args:
        num_clients: K.
        clients_per_round: a fraction of K, or a number.
        seed: of the federation.
        round_idx: from 0.
        present: those who are there; all of them come where they are fewer than the round asks for.
        order: all clients in the order in which they are taken; None draws it.
    """
    size = cohort_size(num_clients, clients_per_round)
    there = range(num_clients) if present is None else present
    if size >= len(there):
        return tuple(there)
    if order is None:
        order = torch.randperm(num_clients, generator=generator(seed, round_idx, "cohort")).tolist()
    if len(there) < num_clients:
        known = set(there)
        order = [client for client in order if client in known]
    return tuple(sorted(order[:size]))


def balanced_shares(cohort: Sequence[int], examples: Mapping[int, int], ranks: int) -> list[list[int]]:
    """Split a cohort over ranks: largest client first, each to the rank that has least so far.

    Args:
        cohort: client ids.
        examples: number of examples of each client of the cohort.
        ranks: number of processes, >= 1.

    Returns:
        For each rank its clients, largest first. The longest rank holds at most 4/3 of the optimum (Graham 1969).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for client in sorted(cohort, key=lambda k: (-examples[k], k)):
        rank = loads.index(min(loads))
        shares[rank].append(client)
        loads[rank] += examples[client]
    return shares
