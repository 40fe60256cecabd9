"""Tables and pictures of each client's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.functional.labels import earth_movers_distance
from fl_lightning.reporting.matrices import draw_matrix, new_figure
from fl_lightning.reporting.tables import text_table
from fl_lightning.utilities.csv_file import write_csv

_FEW_CLASSES = 12
_FEW_CLIENTS = 60


@dataclass(frozen=True)
class PartitionSummary:
    """Count the examples of each client by part and by class.

    Args:
        clients: names of the clients.
        parts: number of examples of each client, int64, shape (K,), by part; ``training`` first.
        counts: training examples of each class, int64, shape (K, C); None if the data have no labels in memory.
        classes: names of the classes.
        public: number of additional examples that every client has: by class, shape (C,), or in total, shape (1,).
        streams: whether each client trains on a stream of unknown length, bool, shape (K,); None if no client does.
    """

    clients: Sequence[str]
    parts: dict[str, Tensor]
    counts: Tensor | None
    classes: Sequence[str]
    public: Tensor
    streams: Tensor | None = None

    @property
    def known(self) -> Tensor:
        """Return whether each client's number of training examples is known, bool, shape (K,)."""
        return torch.ones(len(self.clients), dtype=torch.bool) if self.streams is None else ~self.streams

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of :attr:`rows`."""
        if self.counts is None:
            return ["client", *self.parts]
        return ["client", *self.parts, "classes", "EMD", *self.classes]

    @property
    def rows(self) -> list[list[Any]]:
        """Return a row for each client: name, examples of each part, number of classes, EMD, and examples of each class.

        EMD is the earth mover's distance to the classes of all clients. An unknown number of training examples is None.
        """
        sizes: list[list[int | None]] = torch.stack(list(self.parts.values()), dim=1).tolist()
        for own, known in zip(sizes, self.known.tolist(), strict=True):
            own[0] = own[0] if known else None
        if self.counts is None:
            return [[name, *own] for name, own in zip(self.clients, sizes, strict=True)]
        held, distances = (self.counts > 0).sum(dim=1).tolist(), earth_movers_distance(self.counts).tolist()
        columns = zip(self.clients, sizes, held, distances, self.counts.tolist(), strict=True)
        return [[name, *own, number, distance, *counts] for name, own, number, distance, counts in columns]

    def text(self, max_clients: int) -> str:
        """Return the terminal's table: the first clients, counts per class if there are few classes, and a summary."""
        width = len(self.columns) if len(self.classes) <= _FEW_CLASSES else len(self.columns) - len(self.classes)
        rows = [["unknown" if cell is None else cell for cell in row[:width]] for row in self.rows[:max_clients]]
        lines = [text_table([_short(name, 10) for name in self.columns[:width]], rows)]
        if len(self.clients) > max_clients:
            lines.append(f"... and {len(self.clients) - max_clients} more clients")
        lines.append(self._summary())
        if self.counts is not None:
            distance = earth_movers_distance(self.counts)
            lines.append(
                f"Earth mover's distance between each client's classes and the whole set's (0 if equal, 2 if disjoint): mean "
                f"{float(distance.mean()):.3f}, from {float(distance.min()):.3f} to {float(distance.max()):.3f}."
            )
        if self.public.sum():
            line = f"Every client also trains on {int(self.public.sum())} public examples"
            if self.counts is not None:
                line += f"; with them the mean distance is {float(earth_movers_distance(self.counts + self.public).mean()):.3f}"
            lines.append(line + ".")
        return "\n".join(lines)

    def _summary(self) -> str:
        sizes, streams = self.parts["training"][self.known], int((~self.known).sum())
        unknown = f", {streams} with a stream of unknown length" if streams else ""
        if not len(sizes):
            return f"{len(self.clients)} clients{unknown}."
        return (
            f"{len(self.clients)} clients{unknown}, {int(sizes.sum())} training examples: {int(sizes.min())} to "
            f"{int(sizes.max())} per client, median {int(sizes.double().quantile(0.5))}."
        )

    def write(self, path: Path) -> None:
        """Write all clients and classes to a CSV file."""
        write_csv(path, self.columns, self.rows)


def draw_partition(summary: PartitionSummary, path: Path) -> bool:
    """Draw clients x classes, with the clients' sizes next to it, as a PNG file.

    Returns:
        Whether the file was written; it needs matplotlib.
    """
    clients = len(summary.clients)
    few = clients <= _FEW_CLIENTS
    figure = new_figure(9, min(14, max(3, 0.28 * clients + 1.2)))
    if figure is None:
        return False
    ratio = [3, 1] if summary.counts is not None else [1]
    axes = figure.subplots(1, len(ratio), sharey=True, width_ratios=ratio, squeeze=False)[0]
    if summary.counts is not None:
        _draw_counts(figure, axes[0], summary, summary.counts)
    shape: dict[str, Any] = {"edges": np.arange(clients + 1) - 0.5, "orientation": "horizontal", "fill": True}
    left = np.zeros(clients)
    for name, part in summary.parts.items():  # one shape for all clients is faster than one for each
        right = left + (part * summary.known if name == "training" else part).numpy()
        axes[-1].stairs(right, baseline=left, label=name, **shape)
        left = right
    axes[-1].set_xlabel("examples")
    if few:
        for place in (~summary.known).nonzero().flatten().tolist():
            axes[-1].text(0, place, " stream of unknown length", va="center", fontsize="small")
    axes[-1].margins(y=0.01)
    if len(summary.parts) > 1:
        figure.legend(loc="outside upper right", ncols=len(summary.parts), fontsize="small")
    axes[0].set_ylabel("client")
    if few:
        axes[0].set_yticks(range(clients), summary.clients, fontsize="small")
    axes[0].set_ylim(clients - 0.5, -0.5)
    figure.savefig(path, dpi=120)
    return True


def _draw_counts(figure: Any, axis: Any, summary: PartitionSummary, counts: Tensor) -> None:
    from matplotlib.ticker import MaxNLocator

    classes = [_short(name, 20) for name in summary.classes]
    few = _FEW_CLIENTS, 2 * _FEW_CLASSES
    image = draw_matrix(axis, summary.clients, classes, counts.tolist(), "{:.0f}".format, few=few)
    if max(map(len, classes)) > 2:
        axis.tick_params(axis="x", rotation=45)
    axis.set_xlabel("class")
    axis.set_title("training examples", fontsize="medium")
    figure.colorbar(image, ax=axis, shrink=0.8, ticks=MaxNLocator(5, integer=True, min_n_ticks=1))


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
