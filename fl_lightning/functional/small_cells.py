"""Find the cells of tables that count few rows, and those whose difference from the next cell would reveal few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def few(counts: Tensor, least: int) -> Tensor:
    """Return where a count is of at least one row, but of fewer than ``least``."""
    return (counts > 0) & (counts < least)


def told_thresholds(positive: Tensor, negative: Tensor, totals: tuple[int, int], least: int) -> Tensor:
    """Return at which thresholds of a curve the counts may be told, bool, shape (T,).

    Between two told thresholds, before the first and after the last there are 0 or at least ``least`` rows of each class, so
    that neither a point nor the difference of two points is about fewer.

    Args:
        positive: the rows of the positive class that are predicted positive at each threshold, shape (T,).
        negative: those of the negative class.
        totals: the number of rows of both classes, which everyone may know.
        least: the fewest rows.
    """
    told = torch.zeros(len(positive), dtype=torch.bool)
    known, places = [(0, 0)], list[int]()
    for place in (positive + negative).argsort(stable=True).tolist():
        now = int(positive[place]), int(negative[place])
        if _apart(now, known[-1], least):
            known.append(now)
            places.append(place)
    while places and not _apart(totals, known[-1], least):
        known.pop()
        places.pop()
    told[places] = True
    return told


def _apart(more: tuple[int, int], less: tuple[int, int], least: int) -> bool:
    """Return whether 0 or enough rows of each class are between two points."""
    return all(a == b or a - b >= least for a, b in zip(more, less, strict=True))


def curves_among(states: Mapping[str, Any], thresholds: int) -> set[str]:
    """Return the names of states that hold a table of 2 x 2 cells for each threshold: ((TN, FP), (FN, TP)).

    Args:
        states: the states by name, as those of torchmetrics.
        thresholds: the number of thresholds; 0 if there are none, since tables of several labels have the same shape.
    """
    tables = {name for name, one in states.items() if isinstance(one, Tensor) and one.dim() >= 3 and one.shape[-2:] == (2, 2)}
    return {name for name in tables if thresholds and len(states[name]) == thresholds}


def told_states(states: dict[str, Tensor], least: int, thresholds: int = 0) -> dict[str, Tensor]:
    """Return states of counts as float64, with NaN where they would reveal fewer than ``least`` rows.

    In states that are not curves, the entries with the same first index stand or fall together.

    Args:
        states: the states by name; those of another type than whole numbers are sums of numbers.
        least: the fewest rows.
        thresholds: the number of a curve's thresholds, see :func:`curves_among`.
    """
    found = {name: state.double() for name, state in states.items()}
    if least <= 1:
        return found
    curves = curves_among(states, thresholds)
    for name in curves:
        cells = states[name].reshape(len(states[name]), -1, 2, 2)
        hidden = torch.stack([~_told_of_table(cells[:, k], least) for k in range(cells.shape[1])], 1)
        found[name][hidden.view(states[name].shape[:-2])] = torch.nan
    rest = {name: state for name, state in states.items() if name not in curves}
    for state in rest.values():
        counts = few(state, least) if not state.is_floating_point() else torch.zeros_like(state, dtype=torch.bool)
        if state.dim() == 0 and counts:
            return {other: torch.full_like(tensor, torch.nan) for other, tensor in found.items()}
        if state.dim():
            rows = counts.reshape(len(state), -1).any(1)
            for other, tensor in rest.items():
                if tensor.dim() and len(tensor) == len(state):
                    found[other][rows] = torch.nan
    return found


def few_predicted(states: dict[str, Tensor], least: int, thresholds: int = 0) -> bool:
    """Return whether few rows are predicted to be of one class, or of the others: a precision is then about these alone.

    Args:
        states: the states of a metric: ``tp``, ``fp``, ``tn`` and ``fn``, or matrices of true and predicted classes.
        least: the fewest rows.
        thresholds: the number of a curve's thresholds, see :func:`curves_among`.
    """
    if {"tp", "fp", "tn", "fn"} <= states.keys():
        tp, fp, tn, fn = (states[name] for name in ("tp", "fp", "tn", "fn"))
        return bool((few(tp + fp, least) | few(tn + fn, least)).any())
    curves = curves_among(states, thresholds)
    counts = [state for name, state in states.items() if name not in curves and not state.is_floating_point()]
    tables = [one for one in counts if one.dim() >= 2 and one.shape[-2] == one.shape[-1]]
    return any(bool(few(one.sum(-2), least).any()) for one in tables)


def _told_of_table(cells: Tensor, least: int) -> Tensor:
    positive, negative = cells[:, 1, 1], cells[:, 0, 1]
    totals = int(cells[0, 1].sum()), int(cells[0, 0].sum())
    return told_thresholds(positive, negative, totals, least)
