"""The figures of a round, from its updates: names and units are documented in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fl_lightning.types import ClientUpdate


def client_metrics(updates: Iterable[ClientUpdate]) -> dict[str, float]:
    """Each client's figures as columns, ``client_<figure>/<client>``."""
    columns: dict[str, float] = {}
    for update in updates:
        figures = {
            **update.metrics,  # first: a module's own 'loss' or 'weight' must not pass for the federation's
            "loss": update.train_loss,
            "weight": update.weight,
            "share": update.share,
            "score": update.score,
            "local_score": update.local_score,
            "global_score": update.global_score,
            "examples": update.num_examples,
            "steps": update.num_steps,
            "seconds": update.seconds,
            "bytes_down": update.bytes_down,
            "bytes_up": update.bytes_up,
            "epsilon_of_examples": update.epsilon,
        }
        known = {name: float(x) for name, x in figures.items() if x is not None}
        for name in ("weight", "share"):  # on a route that weighs nobody there is none
            if math.isnan(known[name]):
                del known[name]
        columns |= {f"client_{name}/{update.client}": x for name, x in known.items()}
    return columns


def round_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """What the clients logged, averaged by examples under its own name, and the totals of the round."""
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
