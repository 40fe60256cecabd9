"""Add up everything a run has released so far, by the noise that was added, from which its epsilons are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = dict[str, Any]
"""A line of the ledger: ``drawn`` clients of a cohort whose noisy sum is released, noisy messages ``sent`` and noisy ``steps``
by client, and the ``rates`` at which the steps draw examples. Negative numbers return what was not used. A line of the file
also has the ``run`` and the ``noise``."""
Noise = dict[str, float]
"""The noise multipliers, by what they protect."""


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
