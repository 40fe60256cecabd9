"""The look of lines: one colour, dash and marker for an algorithm in every figure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fl_lightning.strategies import ALGORITHMS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's colours, which readers who do not tell red from green distinguish."""
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 2, 1, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
MOST_STYLES = len(COLOURS) * len(DASHES)
"""Number of styles of which any two differ in at least two of colour, dash and marker, so that they differ in grey, too."""

_GREY = "0.45"
_NUMBERS = {one.name: k + max(0, k - 1) // (len(COLOURS) - 1) for k, one in enumerate(chain.from_iterable(ALGORITHMS.values()))}
"""Numbers of the algorithms' styles; only the first, FedAvg, has the first colour, because it is in most figures."""


@dataclass(frozen=True)
class Style:
    """Describe the look of a line in matplotlib's terms.

    Attributes:
        colour: colour of the line, its markers and its band.
        dash: its line style.
        marker: its marker; empty for none.
    """

    colour: str
    dash: Any
    marker: str = ""


def style(number: int) -> Style:
    """Return the n-th style, from 0. The three lists have no common divisor, so early styles share one feature at most."""
    return Style(COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)])


def styles(labels: Sequence[str], references: Collection[str] = ()) -> dict[str, Style]:
    """Return a style for each label: an algorithm always has the same, references are grey, others have what is left.

    Args:
        labels: names of all lines of a study, as readers see them.
        references: labels that are no competitors, such as centralized training.
    """
    found = {label: Style(_GREY, DASHES[k % len(DASHES)]) for k, label in enumerate(dict.fromkeys(references))}
    taken = {_NUMBERS[label] for label in labels if label in _NUMBERS and label not in found}
    for label in labels:
        if label in found:
            continue
        number = _NUMBERS.get(label)
        if number is None:
            colours = {k % len(COLOURS) for k in taken}
            free = [
                k for k in range(2 * (len(labels) + len(_NUMBERS))) if k not in taken and (k % len(COLOURS) or 0 not in taken)
            ]
            number = next((k for k in free if k % len(COLOURS) not in colours), free[0])
            taken.add(number)
        found[label] = style(number)
    return found
