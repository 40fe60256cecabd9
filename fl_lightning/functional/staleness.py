"""Discount stale updates (FedAsync, Xie et al. 2019, section 5.2; FedBuff, Nguyen et al. 2022, section 5)."""

from __future__ import annotations

from typing import Literal

from fl_lightning.errors import require

Staleness = Literal["constant", "polynomial", "hinge"]


def discount(staleness: int, kind: Staleness, a: float, b: int) -> float:
    """Return the factor s in (0, 1] of an update, 1 for a fresh one.

    Args:
        staleness: the number of new models since the client began, >= 0.
        kind: ``constant`` is 1; ``polynomial`` is ``(staleness + 1)^-a``; ``hinge`` is 1 up to a staleness of b, and then
            ``1 / (a (staleness - b) + 1)``.
        a: how fast the factor falls, >= 0.
        b: the largest staleness without a discount, >= 0, for ``hinge``.

    >>> [discount(staleness, "polynomial", 0.5, 0) for staleness in (0, 3)]
    [1.0, 0.5]
    >>> [discount(staleness, "hinge", 10.0, 4) for staleness in (4, 5)]
    [1.0, 0.09090909090909091]
    """
    if kind == "polynomial":
        return float((staleness + 1) ** -a)
    if kind == "hinge" and staleness > b:
        return 1 / (a * (staleness - b) + 1)
    return 1.0


def check_discount(a: float, b: int) -> None:
    """Reject settings of :func:`discount` outside their range.

    Raises:
        ConfigurationError: naming the setting.
    """
    require(a >= 0, "federation.strategy.a", "0 or above", a)
    require(isinstance(b, int) and b >= 0, "federation.strategy.b", "a whole number of 0 or above", b)
