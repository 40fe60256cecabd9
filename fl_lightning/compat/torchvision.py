"""Private names of torchvision."""

from __future__ import annotations

from typing import Any


def is_downloaded(dataset: Any) -> bool:
    """Return whether the files of a torchvision MNIST are in its folder; the constructor tells only by an error.

    Args:
        dataset: a ``torchvision.datasets.MNIST``.
    """
    return bool(dataset._check_exists())
