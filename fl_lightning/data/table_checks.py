"""Find what may have gone wrong in an export: other units, and numbers for missing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Ranges = Sequence[tuple[float, float, float, float]]
"""Of each feature: its smallest and largest value, its mean, and its standard deviation."""

_FACTOR = 10.0
"""How many times larger or smaller a feature's spread is at a client, compared with the others, if its unit differs."""
_SPREAD = 0.1
"""The least deviation in parts of the range: the range of features that are mostly 0, such as pixels, differs by chance."""
_SENTINELS = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that often stand for a missing value."""
_FAR = 10.0
"""How many standard deviations such a number is away from the other values, if it stands for a missing one."""


def ranges_of(features: np.ndarray[Any, Any]) -> list[tuple[float, float, float, float]]:
    """Return the ranges of features of shape (n, d), n >= 1, without missing numbers (NaN); 0 for a feature without numbers."""
    there = np.where(np.isnan(features).all(0), 0.0, features)
    found = np.stack([np.nanmin(there, 0), np.nanmax(there, 0), np.nanmean(there, 0), np.nanstd(there, 0)], axis=1)
    return list(map(tuple, found.tolist()))


def unlike_ranges(names: Sequence[str] | None, clients: Mapping[str, Ranges]) -> list[str]:
    """Return a sentence for each feature whose spread at a client is far from the others'.

    Args:
        names: the names of the features; None numbers them.
        clients: the ranges of each client, by its name in messages.
    """
    if len(clients) < 2 or len({len(ranges) for ranges in clients.values()}) != 1:
        return []
    low, high, _, std = np.moveaxis(np.array([*clients.values()]), 2, 0)  # each of shape (clients, features)
    reach = np.maximum(np.abs(low), np.abs(high))  # another unit changes it, or a number far away
    spread = np.divide(std, high - low, out=np.zeros_like(std), where=high > low)
    usual, width, lowest, highest = map(_of_others, (reach, spread, low, high))
    smaller = np.minimum(reach, usual)
    odd = (width >= _SPREAD) & (smaller > 0) & (np.maximum(reach, usual) >= _FACTOR * smaller)
    found = []
    for k, own in np.argwhere(odd.T):
        label = f"'{names[k]}'" if names is not None and k < len(names) else f"number {k}"
        found.append(
            f"The feature {label} is from {low[own, k]:.2g} to {high[own, k]:.2g} at {[*clients][own]}, but from "
            f"{lowest[own, k]:.2g} to {highest[own, k]:.2g} at the others. Check its unit there, and numbers that stand for "
            "missing values."
        )
    return found


def _of_others(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each client the median of the other clients, of values of shape (clients, features)."""
    return np.stack([np.median(np.delete(values, own, axis=0), axis=0) for own in range(len(values))])


def sentinels(names: Sequence[str], features: np.ndarray[Any, Any]) -> list[str]:
    """Return a sentence for each feature in which a number such as -9999 seems to stand for missing values.

    Args:
        names: the names of the features.
        features: their values, shape (n, d).
    """
    found = []
    for value in _SENTINELS:
        equal = features == value
        for k in np.flatnonzero(equal.any(0)).tolist():
            others = features[~(equal[:, k] | np.isnan(features[:, k])), k]
            if others.size and abs(value - others.mean()) > _FAR * others.std() and abs(value) > 2 * np.abs(others).max():
                found.append(
                    f"The column '{names[k]}' has {value:g} in {int(equal[:, k].sum())} of {len(features)} rows, and otherwise "
                    f"{others.min():.4g} to {others.max():.4g}. If it stands for a missing value, remove the rows or fill them."
                )
    return found
