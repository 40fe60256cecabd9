"""What a run has released so far: what its epsilons are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entry = dict[str, Any]
"""A line of the ledger: ``drawn`` clients of a cohort whose noisy sum is released, noisy messages ``sent`` and noisy ``steps``
by client, and the ``rates`` at which the steps draw examples. Negative numbers give back what was not used."""


class Spending:
    """Adds up entries: sums of cohorts, messages and steps of each client.

    Attributes:
        sums: noisy sums over cohorts.
        drawn: clients of the largest of these cohorts.
        sent: noisy messages by client.
        steps: noisy steps by client.
        rates: the highest rate of a client's steps, by client.
    """

    def __init__(self) -> None:
        self.sums, self.drawn = 0, 0
        self.sent: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.rates: dict[int, float] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count an entry, as it comes out of JSON or is put into it.

        Raises:
            ValueError: if it is none.
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

    def state_dict(self) -> Entry:
        """Return everything, plain types only."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take everything back."""
        self.__dict__.update({name: dict(value) if isinstance(value, dict) else value for name, value in state.items()})
