"""Read types and names of classes as this package means them, while a command runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from lightning.pytorch import Trainer

import fl_lightning
from fl_lightning.compat.jsonargparse import preferring

_LIMITS = tuple(f"limit_{kind}_batches" for kind in ("train", "val", "test", "predict"))


@contextmanager
def own_types() -> Iterator[None]:
    """Let a block read numbers of batches before shares, and bare names as classes of this package.

    typing treats Union[int, float] and Union[float, int] as equal and keeps the one that was written first in the process. If
    that is the latter, the parser would read '2' batches as the share 2.0.
    """
    annotations = inspect.unwrap(Trainer.__init__).__annotations__
    limits = dict.fromkeys(_LIMITS, int | float | None)
    with patch.dict(annotations, limits), preferring({name: f"fl_lightning.{name}" for name in fl_lightning.__all__}):
        yield
