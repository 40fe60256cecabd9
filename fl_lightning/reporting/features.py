"""Compare what the clients' features are like before training, from exact sums."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.functional.exact_moments import Moments, together
from fl_lightning.reporting.tables import text_table

COLUMNS = ["feature", "mean", "deviation", "missing", "most different", "difference"]
_LARGE = 0.8
"""The standardised difference of two means from which it is called large (Cohen 1988, section 2.2.3)."""


@dataclass(frozen=True)
class FeatureSummary:
    """Hold the moments of each feature at each client.

    Args:
        features: the names of the features.
        clients: the names of the clients.
        examples: the number of training examples of each client.
        moments: the moments of each client's features.
    """

    features: Sequence[str]
    clients: Sequence[str]
    examples: Sequence[int]
    moments: Sequence[Moments]

    @property
    def rows(self) -> list[list[Any]]:
        """Return for each feature the mean, deviation and missing share of all rows, and the client that differs most.

        The difference is that of the client's mean from the mean of the other clients, in deviations of all rows; None where
        the feature is constant or only one client has numbers.
        """
        whole = together(self.moments)
        means, deviations = whole.means(), whole.deviations()
        values = self._values_per_example(whole)
        rows = []
        for k, name in enumerate(self.features):
            client, difference = self._most_different(k, deviations[k])
            missing = 1 - whole.counts[k] / (sum(self.examples) * values)
            rows.append([name, means[k], deviations[k], missing, client, difference])
        return rows

    def _values_per_example(self, whole: Moments) -> int:
        """Return how many numbers of a channel an example has: 1 in a table, the pixels of an image."""
        return max(1, math.ceil(max(whole.counts) / max(1, sum(self.examples))))

    def _most_different(self, k: int, deviation: float) -> tuple[str, float | None]:
        found: tuple[str, float | None] = ("", None)
        for number, own in enumerate(self.moments):
            others = [moments for place, moments in enumerate(self.moments) if place != number]
            rest = together(others) if others else None
            if rest is None or not rest.counts[k] or not own.counts[k] or not deviation:
                continue
            difference = (own.means()[k] - rest.means()[k]) / deviation
            if found[1] is None or abs(difference) > abs(found[1]):
                found = self.clients[number], difference
        return found

    def text(self, max_features: int) -> str:
        """Return the terminal's table, the features that differ most first, and a sentence about the first."""
        rows = sorted(self.rows, key=lambda row: -abs(row[5] or 0.0))
        shown = [[*row[:3], f"{100 * row[3]:.1f} %", row[4], row[5]] for row in rows[:max_features]]
        lines = [text_table(COLUMNS, [["" if cell is None else cell for cell in row] for row in shown])]
        if len(rows) > max_features:
            lines.append(f"... and {len(rows) - max_features} more features")
        name, client, difference = rows[0][0], rows[0][4], rows[0][5]
        if difference is not None and abs(difference) >= _LARGE:
            side = "above" if difference > 0 else "below"
            lines.append(
                f"The mean of '{name}' at client {client} is {abs(difference):.1f} deviations {side} that of the others. Check "
                "its unit there, unless its examples are that different."
            )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write the numbers, mean, deviation and missing share of each feature at each client, and of all, to a CSV file."""
        values = self._values_per_example(together(self.moments))
        everyone = [
            ("all", sum(self.examples), together(self.moments)),
            *zip(self.clients, self.examples, self.moments, strict=True),
        ]
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["feature", "client", "numbers", "mean", "deviation", "missing"])
            for k, name in enumerate(self.features):
                for client, examples, own in everyone:
                    missing = 1 - own.counts[k] / max(1, examples * values)
                    there = own.counts[k] > 0
                    mean, deviation = (own.means()[k], own.deviations()[k]) if there else ("", "")
                    table.writerow([name, client, own.counts[k], mean, deviation, missing])
