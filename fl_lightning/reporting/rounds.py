"""The figures of a round, computed from its updates; docs/metrics.md documents their names and units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fl_lightning.functional.spread import drift
from fl_lightning.types import ClientUpdate

MOST_COLUMNS = 20
"""The largest number of clients for which the log has columns for each client."""
QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
"""Quantiles that replace a column per client if there are many clients."""


def client_figures(update: ClientUpdate) -> dict[str, float]:
    """Return the figures of a client's round, by name."""
    figures = {
        **update.metrics,  # first, so that a module's own 'loss' or 'weight' does not override the federation's
        "loss": update.train_loss,
        "weight": update.weight,
        "share": update.share,
        "score": update.score,
        "local_score": update.local_score,
        "global_score": update.global_score,
        "update_norm": update.update_norm,
        "examples": update.num_examples,
        "steps": update.num_steps,
        "seconds": update.seconds,
        "bytes_down": update.bytes_down,
        "bytes_up": update.bytes_up,
        "epsilon_of_examples": update.epsilon,
        "staleness": update.staleness,
    }
    known = {name: float(x) for name, x in figures.items() if x is not None}
    for name in ("weight", "share"):  # NaN on a route that does not weigh clients
        if math.isnan(known[name]):
            del known[name]
    return known


def client_metrics(updates: Iterable[ClientUpdate], name_of: Callable[[int], str] = str) -> dict[str, float]:
    """Return each client's figures as columns, ``client_<figure>/<client>``, with the name of the client if it has one."""
    named = [(name_of(update.client), client_figures(update)) for update in updates]
    return {f"client_{name}/{client}": x for client, figures in named for name, x in figures.items()}


def quantiles(figures: Mapping[str, float]) -> dict[str, float]:
    """Replace the figures of clients, ``<name>/<client>``, by their quantiles: ``<name>/min`` to ``<name>/max``.

    Values between two clients are interpolated linearly. A figure that is not finite for some client has no quantiles.
    """
    kept: dict[str, float] = {}
    families: dict[str, list[float]] = {}
    for name, value in figures.items():
        family, _, client = name.rpartition("/")
        if client.isdigit():
            families.setdefault(family, []).append(value)
        else:
            kept[name] = value
    levels = torch.tensor(list(QUANTILES.values()), dtype=torch.float64)
    for family, values in families.items():
        if all(map(math.isfinite, values)):
            found = torch.quantile(torch.tensor(values, dtype=torch.float64), levels).tolist()
            kept |= {f"{family}/{name}": value for name, value in zip(QUANTILES, found, strict=True)}
    return kept


def round_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Return the clients' metrics, averaged by examples under their own names, and the totals of the round."""
    examples = sum(update.num_examples for update in updates)
    names = sorted(set.intersection(*(set(update.metrics) for update in updates)))
    means = {name: sum(u.metrics[name] * u.num_examples for u in updates) / examples for name in names}
    losses = [(u.train_loss, u.num_examples) for u in updates if u.train_loss is not None]
    if losses:
        means["federation/loss"] = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
    scores = [update.score for update in updates if update.score is not None]
    if scores:
        means["federation/score"] = sum(scores) / len(scores)
    return {
        **means,
        "federation/clients": float(len(updates)),
        "federation/examples": float(examples),
        "federation/bytes_down": float(sum(update.bytes_down for update in updates)),
        "federation/bytes_up": float(sum(update.bytes_up for update in updates)),
    }


def movement(updates: Sequence[ClientUpdate], step: float, averages: bool) -> dict[str, float]:
    """Measure how far the models of a round moved.

    Args:
        updates: updates of the round.
        step: ``|aggregate - w_t|``.
        averages: whether the aggregate is the average of the models, weighted by the updates' shares.

    Returns:
        ``aggregate_norm``; and, if norms of single clients may be revealed, ``update_norm``, the clients' mean, and ``drift``.
    """
    norms = [update.update_norm for update in updates if update.update_norm is not None]
    figures = {"aggregate_norm": step}
    if norms:
        figures["update_norm"] = math.fsum(norms) / len(norms)
    counted = [update for update in updates if update.share > 0]
    if averages and counted and all(update.update_norm is not None for update in counted):
        figures["drift"] = drift([u.update_norm or 0.0 for u in counted], [u.share for u in counted], step)
    return figures


def staleness_figures(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Return the mean and the largest staleness of a round's updates; nothing for synchronous rounds."""
    known = [update.staleness for update in updates if update.staleness is not None]
    return {"staleness": sum(known) / len(known), "staleness_max": float(max(known))} if known else {}


class Totals:
    """Count what the rounds of a run have cost so far; part of the run's state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting for a new run."""
        self._bytes, self._seconds = 0, 0.0

    def add(self, updates: Iterable[ClientUpdate], seconds: float) -> dict[str, float]:
        """Count a round, and return its seconds and the total megabytes and seconds so far."""
        self._bytes += sum(update.bytes_down + update.bytes_up for update in updates)
        self._seconds += seconds
        return {"seconds": seconds, "megabytes_total": self._bytes / 1e6, "seconds_total": self._seconds}

    def state_dict(self) -> dict[str, Any]:
        """Return the totals for a checkpoint."""
        return {"bytes": self._bytes, "seconds": self._seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the totals."""
        self._bytes, self._seconds = int(state["bytes"]), float(state["seconds"])
