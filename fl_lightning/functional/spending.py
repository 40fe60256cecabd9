"""Add up everything a run has released so far, by the noise that was added, from which its epsilons are computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fl_lightning.functional.releases import Case

Entry = dict[str, Any]
"""A line of the ledger: ``drawn`` clients of a cohort whose noisy sum is released, noisy messages ``sent`` and noisy ``steps``
by client, and the ``rates`` at which the steps draw examples. Negative numbers return what was not used. A line of the file
also has the ``run`` and the ``noise``."""
Noise = dict[str, float]
"""The noise multipliers, by what they protect."""
_MOST_RATES = 64
"""The largest number of rates at which groups of clients are compared; if there are more, they are rounded up."""


class Spending:
    """Add up entries: sums of cohorts, messages and steps of each client.

    Attributes:
        sums: the number of noisy sums over cohorts.
        drawn: the number of clients in the largest of these cohorts.
        sent: the number of noisy messages by client.
        steps: the number of noisy steps by client.
        rates: the highest rate of a client's steps, by client.
    """

    def __init__(self) -> None:
        self.sums, self.drawn = 0, 0
        self.sent: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.rates: dict[int, float] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count an entry, before or after conversion to JSON.

        Raises:
            ValueError: if it is not an entry.
        """
        if not isinstance(entry, Mapping):
            raise ValueError("no entry")
        if "drawn" in entry:
            self.sums, self.drawn = self.sums + 1, max(self.drawn, int(entry["drawn"]))
        for mine, name in ((self.sent, "sent"), (self.steps, "steps")):
            for client, count in dict(entry.get(name, {})).items():
                mine[int(client)] = mine.get(int(client), 0) + int(count)
        for client, rate in dict(entry.get("rates", {})).items():
            self.rates[int(client)] = max(self.rates.get(int(client), 0.0), float(rate))

    def within(self, other: Spending) -> bool:
        """Return whether nothing is more than in another spending."""
        return (self.sums <= other.sums and self.drawn <= other.drawn) and all(
            number <= theirs.get(client, 0)
            for mine, theirs in ((self.sent, other.sent), (self.steps, other.steps), (self.rates, other.rates))
            for client, number in mine.items()
        )

    def state_dict(self) -> Entry:
        """Return the whole state, in plain types only."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the whole state."""
        self.__dict__.update({name: dict(value) if isinstance(value, dict) else value for name, value in state.items()})


class Spendings:
    """Add up entries by their noise, which changes if a run is extended.

    Attributes:
        parts: each noise, and what was released with it, in the order of the first release.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Noise, Spending]] = []

    def of(self, noise: Noise) -> Spending:
        """Return what was released with a noise."""
        found = next((spending for known, spending in self.parts if known == noise), None)
        return self.replaced(noise, Spending()) if found is None else found

    def replaced(self, noise: Noise, spending: Spending) -> Spending:
        """Set and return what was released with a noise."""
        self.parts = [(known, one) for known, one in self.parts if known != noise] + [(noise, spending)]
        return spending

    def state_dict(self) -> list[tuple[Noise, Entry]]:
        """Return the whole state, in plain types only."""
        return [(noise, spending.state_dict()) for noise, spending in self.parts]

    def load_state_dict(self, state: Sequence[tuple[Noise, Mapping[str, Any]]]) -> None:
        """Restore the whole state."""
        self.parts = []
        for noise, entry in state:
            self.of(noise).load_state_dict(entry)


def hardest(groups: Collection[tuple[int, ...]], released: Sequence[Spending], most: int = 16) -> set[Case]:
    """Return what was released of groups of clients, without groups that another one costs at least as much as.

    That is a group which has made as many steps with each noise, at the same or at higher rates. If more than ``most`` are
    left, every second rate is rounded up to the next one, again and again, so that the result costs no less.

    Args:
        groups: the clients of each group, who train on examples of the same person.
        released: what was released with each noise.
        most: how many groups may be left without rounding.
    """
    clients = np.fromiter(chain.from_iterable(groups), dtype=np.int64)
    known, place = np.unique(clients, return_inverse=True)
    steps = np.array([[each.steps.get(k, 0) for k in known.tolist()] for each in released])
    rates = [[(noise, -each.rates.get(k, 0.0)) for k in known.tolist()] for noise, each in enumerate(released)]
    kinds = sorted(set(chain.from_iterable(rates)))  # of each noise, the highest rate first
    column = {kind: k for k, kind in enumerate(kinds)}
    chosen, rounded = _rounded_up(kinds, 1 + len(kinds) // _MOST_RATES)
    counts = np.zeros((len(groups), len(chosen)), dtype=np.int64)
    row = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    for noise, own in enumerate(rates):
        np.add.at(counts, (row, rounded[[column[kind] for kind in own]][place]), steps[noise][place])
    while True:
        kinds = [kinds[k] for k in chosen]
        left = _highest(counts, kinds, most if len(kinds) > len(released) else len(groups))
        if left is not None:
            return {tuple((kinds[k][0], -kinds[k][1], int(one[k])) for k in one.nonzero()[0]) for one in left}
        chosen, rounded = _rounded_up(kinds, 2)
        counts = np.add.reduceat(counts, chosen, axis=1)


def _rounded_up(kinds: Sequence[tuple[int, float]], step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the positions of every ``step``-th rate of each noise, from the highest, and which of them each becomes."""
    noises = np.array([noise for noise, _ in kinds])
    place = np.arange(len(kinds)) - np.searchsorted(noises, noises)
    first = place % step == 0
    return first.nonzero()[0], first.cumsum() - 1


def _highest(counts: np.ndarray[Any, Any], kinds: Sequence[tuple[int, float]], most: int) -> list[np.ndarray[Any, Any]] | None:
    """Return the rows that no other one exceeds; None if there are more than ``most``."""
    counts, noises = np.unique(counts, axis=0), np.array([noise for noise, _ in kinds])
    sums = np.concatenate([np.zeros((len(counts), 1), dtype=np.int64), counts.cumsum(1)], 1)
    reached = sums[:, 1:] - sums[:, np.searchsorted(noises, noises)]  # with each noise, at this rate or a higher one
    kept: list[int] = []
    for row in reached.sum(1).argsort(kind="stable")[::-1].tolist():
        if not (reached[kept] >= reached[row]).all(1).any():
            kept.append(row)
        if len(kept) > most:
            return None
    return [counts[row] for row in kept]
