"""Choose the clients of a round, and the rank that trains each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch

from fl_lightning.errors import require, share_hint
from fl_lightning.functional.seeding import generator

_CHEAP_DRAWS = 50
"""The clients that shuffling all of them handles in the time of one separate draw."""


def cohort_size(num_clients: int, clients_per_round: int | float) -> int:
    """Return the number of clients in a round: a float in (0, 1] is a fraction (rounded, at least one), an int a number.

    Raises:
        ConfigurationError: if a number is above ``num_clients`` or below 1, or a fraction outside (0, 1].
    """
    if isinstance(clients_per_round, int):
        wanted = f"a number of clients from 1 to {num_clients} (there are {num_clients} clients)"
        require(1 <= clients_per_round <= num_clients, "federation.clients_per_round", wanted, clients_per_round)
        return clients_per_round
    wanted = "a fraction above 0 and at most 1.0, or a whole number of clients"
    hint = share_hint(clients_per_round, counts=True)
    require(0 < clients_per_round <= 1, "federation.clients_per_round", wanted, clients_per_round, hint)
    return max(1, round(clients_per_round * num_clients))


def draw_cohort(
    num_clients: int,
    clients_per_round: int | float,
    seed: int,
    round_idx: int,
    present: Sequence[int] | None = None,
    order: Iterable[int] | None = None,
) -> tuple[int, ...]:
    """Draw the clients of a round, ascending, uniformly without replacement, from (seed, round_idx) alone.

    A small part of the clients is drawn in a time that does not depend on their number.

    Args:
        num_clients: the number of clients K.
        clients_per_round: a fraction of K, or a number.
        seed: the seed of the federation.
        round_idx: the round, from 0.
        present: the available clients; if they are fewer than the round asks for, all of them are chosen.
        order: all clients in order of preference; None draws the order.
    """
    size = cohort_size(num_clients, clients_per_round)
    there = range(num_clients) if present is None else present
    if size >= len(there):
        return tuple(there)
    if order is None:
        numbers = generator(seed, round_idx, "cohort")
        few = _CHEAP_DRAWS * size <= len(there)
        order = random_order(num_clients, numbers) if few else torch.randperm(num_clients, generator=numbers).tolist()
    known = there if isinstance(there, range) else set(there)
    return tuple(sorted(islice((client for client in order if client in known), size)))


def random_order(count: int, generator: torch.Generator) -> Iterator[int]:
    """Yield ``torch.randperm(count, generator=generator)`` one number at a time, at a cost that does not depend on ``count``.

    It is the same shuffle (Fisher and Yates) with the same random numbers, but only numbers that have moved are stored.
    """
    moved: dict[int, int] = {}
    for position in range(count):
        chosen = position + int(torch.randint(count - position, (), generator=generator))
        yield moved.get(chosen, chosen)
        moved[chosen] = moved.pop(position, position)


def balanced_shares(cohort: Sequence[int], examples: Mapping[int, int], ranks: int) -> list[list[int]]:
    """Split a cohort over ranks: largest client first, each to the rank with the least load so far.

    Args:
        cohort: the client ids.
        examples: the number of examples of each client of the cohort.
        ranks: the number of processes, >= 1.

    Returns:
        The clients of each rank, largest first. The longest rank holds at most 4/3 of the optimum (Graham 1969).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for client in sorted(cohort, key=lambda k: (-examples[k], k)):
        rank = loads.index(min(loads))
        shares[rank].append(client)
        loads[rank] += examples[client]
    return shares
