"""Scores on the clients' own test parts: their spread over clients, and the table of the Fed-Star thesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def spread_of_clients(values: Tensor, sizes: Tensor, higher_is_better: bool, whose: str = "client") -> dict[str, float]:
    """Return the mean weighted by the clients' test examples (FedLoss thesis, 3.3.3), and the spread over clients.

    Args:
        values: score of each client, float64, shape (K,).
        sizes: number of test examples of each client, shape (K,).
        higher_is_better: whether the lowest or the highest value is the worst.
        whose: the beginning of the figures' names.

    Returns:
        ``client_mean``; ``client_worst``; ``client_p10``, the value that a tenth of the clients do worse than, by linear
        interpolation between two clients; ``client_std``, the unweighted standard deviation over the K clients.
    """
    worst, tenth = (values.min(), 0.1) if higher_is_better else (values.max(), 0.9)
    figures = {
        "mean": (values * sizes).sum() / sizes.sum(),
        "worst": worst,
        "p10": torch.quantile(values, tenth),
        "std": values.std(correction=0),
    }
    return {f"{whose}_{name}": float(value) for name, value in figures.items()}


def comparison_table(
    names: Sequence[str], sizes: Tensor, columns: Mapping[str, Tensor], higher_is_better: bool, counted: Tensor | None = None
) -> tuple[list[str], list[list[Any]]]:
    """Tabulate each client's test examples and scores, with a last row of means (Fed-Star thesis, Table 5.8).

    Args:
        names: names of the clients.
        sizes: number of test examples of each, shape (K,).
        columns: the values of each client, shape (K,), by name. The gain is that of ``personalised`` (or, without it, of
            ``global``) over ``local only`` (or, without it, over ``global``); above 0 is better. On routes where clients keep
            their own models, ``own`` replaces ``global``.
        higher_is_better: determines the sign of the gain.
        counted: the clients over which the means are taken, bool, shape (K,); None for all.

    Returns:
        Header and rows; means are weighted by test examples.
    """
    shown = dict(columns)
    federated = shown["own"] if "own" in shown else shown["global"]
    after, before = shown.get("personalised", federated), shown.get("local only", federated)
    if len(shown) > 1:
        shown["gain"] = (after - before) * (1 if higher_is_better else -1)
    rows: list[list[Any]] = [
        [name, int(sizes[k]), *(float(column[k]) for column in shown.values())] for k, name in enumerate(names)
    ]
    chosen = slice(None) if counted is None else counted
    total = sizes[chosen].sum()
    means = [float((column * sizes)[chosen].sum() / total) for column in shown.values()]
    return ["client", "test examples", *shown], [*rows, ["all", int(total), *means]]
