"""Compare what the clients' features are like before training, from exact sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.functional.exact_moments import Moments, together
from fl_lightning.functional.histograms import Cuts, borders
from fl_lightning.reporting.matrices import new_figure
from fl_lightning.reporting.tables import text_table
from fl_lightning.utilities.csv_file import write_csv

COLUMNS = ["feature", "mean", "deviation", "missing", "most different", "difference"]
_FEATURES, _CLIENTS, _COLUMNS = 12, 10, 4
"""The largest numbers of features, of clients, and of columns in a picture."""
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
        cuts: the borders between the bins of each feature.
        bins: how many examples of each client are in each bin of each feature, without missing numbers: None for a count of few
            rows, or one from which it would follow; empty without bins.
        partial: whether a feature without numbers is one of which a client does not tell the sums.
    """

    features: Sequence[str]
    clients: Sequence[str]
    examples: Sequence[int]
    moments: Sequence[Moments]
    cuts: Cuts = ()
    bins: Sequence[Sequence[Sequence[int | None]]] = ()
    partial: bool = False

    @property
    def rows(self) -> list[list[Any]]:
        """Return for each feature the mean, deviation and missing share of all rows, and the client that differs most.

        The difference is that of the client's mean from the mean of the other clients, in deviations of all rows; None where
        the feature is constant or only one client has numbers.
        """
        whole = together(self.moments)
        means, deviations = whole.means(), whole.deviations()
        values = self._values_per_example(whole)
        different = self._most_different(whole, deviations)
        rows = []
        for k, name in enumerate(self.features):
            examples = self._telling(k)
            missing = 1 - whole.counts[k] / (examples * values) if examples else None
            rows.append([name, means[k], deviations[k], missing, *different[k]])
        return rows

    def _telling(self, feature: int) -> int:
        """Return the number of examples of the clients that tell the sums of a feature."""
        pairs = zip(self.examples, self.moments, strict=True)
        return sum(examples for examples, own in pairs if own.counts[feature] or not self.partial)

    def _values_per_example(self, whole: Moments) -> int:
        """Return how many numbers of a channel an example has: 1 in a table, the pixels of an image."""
        return max(1, math.ceil(max(whole.counts) / max(1, sum(self.examples))))

    def _most_different(self, whole: Moments, deviations: Sequence[float]) -> list[tuple[str, float | None]]:
        """Return the client that differs most in each feature, and by how much."""
        found: list[tuple[str, float | None]] = [("", None)] * len(self.features)
        for client, own in zip(self.clients, self.moments, strict=True):
            rest = whole.without(own)
            for k, (mine, others) in enumerate(zip(own.means(), rest.means(), strict=True)):
                if not (own.counts[k] and rest.counts[k] and deviations[k]):
                    continue
                difference, largest = (mine - others) / deviations[k], found[k][1]
                if largest is None or abs(difference) > abs(largest):
                    found[k] = client, difference
        return found

    def text(self, max_features: int) -> str:
        """Return the terminal's table, the features that differ most first, and a sentence about the first."""
        rows = sorted(self.rows, key=lambda row: -abs(row[5] or 0.0))
        shown = [[*row[:3], "" if row[3] is None else f"{100 * row[3]:.1f} %", row[4], row[5]] for row in rows[:max_features]]
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

    @property
    def order(self) -> list[int]:
        """Return the numbers of the features, those that differ most first."""
        differences = [abs(row[5] or 0.0) for row in self.rows]
        return sorted(range(len(self.features)), key=lambda k: -differences[k])

    def write_bins(self, path: Path) -> None:
        """Write how many examples of each client are in each bin to a CSV file; an empty cell is a count of few rows."""
        rows = (
            [name, client, low, high, "" if count is None else count]
            for k, name in enumerate(self.features)
            for client, own in zip(self.clients, self.bins, strict=True)
            for (low, high), count in zip(borders(self.cuts[k]), own[k], strict=False)
        )
        write_csv(path, ["feature", "client", "from", "to", "examples"], rows)

    def write(self, path: Path) -> None:
        """Write the numbers, mean, deviation and missing share of each feature at each client, and of all, to a CSV file."""
        whole = together(self.moments)
        values = self._values_per_example(whole)
        everyone = [("all", 0, whole), *zip(self.clients, self.examples, self.moments, strict=True)]
        scales = [(own.means(), own.deviations()) for _, _, own in everyone]
        rows: list[list[Any]] = []
        for k, name in enumerate(self.features):
            for (client, examples, own), (means, deviations) in zip(everyone, scales, strict=True):
                if self.partial and not own.counts[k]:
                    rows.append([name, client, "", "", "", ""])
                    continue
                missing = 1 - own.counts[k] / max(1, (self._telling(k) if own is whole else examples) * values)
                scale = (means[k], deviations[k]) if own.counts[k] else ("", "")
                rows.append([name, client, own.counts[k], *scale, missing])
        write_csv(path, ["feature", "client", "numbers", "mean", "deviation", "missing"], rows)


def draw_features(summary: FeatureSummary, path: Path) -> bool:
    """Draw the share of each client's examples in each bin, for the features that differ most, as a PNG file.

    A count of few rows is a gap.

    Returns:
        Whether the file was written; it needs matplotlib and bins.
    """
    shown = [k for k in summary.order if any(n is not None for own in summary.bins for n in own[k])][:_FEATURES]
    if not shown:
        return False
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(3 * columns, 2.4 * rows + 0.6)
    if figure is None:
        return False
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    clients = summary.clients[:_CLIENTS]
    for axis, k in zip(axes, shown, strict=False):
        cuts = summary.cuts[k]
        step = cuts[1] - cuts[0] if len(cuts) > 1 else 1.0
        places = [cuts[0] - step / 2, *(cut + step / 2 for cut in cuts)]
        for client, own, moments in zip(clients, summary.bins, summary.moments, strict=False):
            shares = [math.nan if n is None else n / max(1, moments.counts[k]) for n in own[k]]
            axis.plot(places[: len(shares)], shares, marker=".", drawstyle="steps-mid", label=client)
        axis.set_title(summary.features[k], fontsize="small")
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        if len(cuts) == 1:
            axis.set_xticks([0, 1])
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    axes[0].set_ylabel("share of examples")
    more = f", and {len(summary.clients) - _CLIENTS} more" if len(summary.clients) > _CLIENTS else ""
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(clients)), fontsize="small"
    )
    figure.suptitle(f"Counts of few rows are left out{more and ' (the first 10 clients' + more + ')'}", fontsize="small")
    figure.savefig(path, dpi=120)
    return True
