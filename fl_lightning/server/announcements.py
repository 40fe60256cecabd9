"""Tell the Trainer's callbacks what happens in a round."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


def announce(trainer: Trainer, hook: str, *args: Any) -> None:
    """Call a hook of every callback of the Trainer that defines it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, trainer.lightning_module, *args)
