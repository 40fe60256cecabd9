"""Private names of torchvision."""

from __future__ import annotations

from typing import Any

from fl_lightning.compat.private import Private

_EXISTS = Private("torchvision", "torchvision.datasets.MNIST", "_check_exists", "reads the files to see whether they are there")


def is_downloaded(dataset: Any) -> bool:
    """Return whether the files of a torchvision MNIST are in its folder; the constructor tells only by an error.

    Args:
        dataset: a ``torchvision.datasets.MNIST``.
    """
    exists: Any = _EXISTS.get(None, dataset)
    if exists is not None:
        return bool(exists())
    try:
        type(dataset)(dataset.root, download=False)
    except RuntimeError:
        return False
    return True
