"""Private names of Lightning for the signals that a Trainer takes over in a fit, about which it has no flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.compat.private import Private

__all__ = ["ignore_signals", "note_sigterm", "on_sigterm"]

_TRAINER = "lightning.pytorch.Trainer"
_REGISTERS, _TEARS_DOWN = (
    Private("lightning", _TRAINER, f"_signal_connector.{name}", "lets the Trainer of each client take over signals in its fit")
    for name in ("register_signal_handlers", "teardown")
)
_NOTIFIES = Private("lightning", _TRAINER, "_signal_connector._sigterm_notifier_fn")
_RECEIVED = Private("lightning", _TRAINER, "_signal_connector.received_sigterm")
_RANKS = "Ending several ranks together after SIGTERM"


def ignore_signals(trainer: Trainer) -> None:
    """Keep a Trainer from taking over signals and restoring them."""
    if not (_REGISTERS.exists(trainer) and _TEARS_DOWN.exists(trainer)):
        return
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

    Raises:
        VersionError: if Lightning has another way: its own would let ranks wait for each other forever.
    """
    for name in (_NOTIFIES, _RECEIVED):
        name.require(_RANKS, trainer)
    connector: Any = trainer._signal_connector
    vars(connector)["_sigterm_notifier_fn"] = lambda *_: act()
    return lambda: vars(connector).pop("_sigterm_notifier_fn", None)


def note_sigterm(trainer: Trainer) -> None:
    """Let a Trainer end at the end of its batch, as after SIGTERM; ``received_sigterm`` can only be read."""
    _RECEIVED.require(_RANKS, trainer)
    trainer._signal_connector.received_sigterm = True
