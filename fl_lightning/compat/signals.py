"""Private names of Lightning for the signals that a Trainer takes over in a fit, about which it has no flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer

__all__ = ["ignore_signals", "note_sigterm", "on_sigterm"]


def ignore_signals(trainer: Trainer) -> None:
    """Keep a Trainer from taking over signals and restoring them."""
    for name in ("register_signal_handlers", "teardown"):
        setattr(trainer._signal_connector, name, _do_nothing)


def _do_nothing() -> None:
    return None


def on_sigterm(trainer: Trainer, act: Callable[[], None]) -> Callable[[], None]:
    """Replace what a Trainer does when SIGTERM arrives.

    Args:
        trainer: a Trainer that has not taken over signals yet.
        act: what to do.

    Returns:
        A function that lets the Trainer do its own again.
    """
    connector: Any = trainer._signal_connector
    vars(connector)["_sigterm_notifier_fn"] = lambda *_: act()
    return lambda: vars(connector).pop("_sigterm_notifier_fn", None)


def note_sigterm(trainer: Trainer) -> None:
    """Let a Trainer end at the end of its batch, as after SIGTERM; ``received_sigterm`` can only be read."""
    trainer._signal_connector.received_sigterm = True
