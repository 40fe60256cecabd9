"""Read the names under which modules log their metrics."""

from __future__ import annotations

VALIDATION = ("val_*", "val/*")
"""Patterns of the metrics that a module logs in validation."""


def is_validation_figure(name: str) -> bool:
    """Return whether a name is that of a figure from validation, in either style, and not one of a family of figures.

    >>> [is_validation_figure(name) for name in ("val_mae", "val/mae", "val_f1/3", "federation/val_mae")]
    [True, True, False, False]
    """
    return (name.startswith("val_") and "/" not in name) or (name.startswith("val/") and name.count("/") == 1)
