"""One client's turn to train."""

from __future__ import annotations

from dataclasses import dataclass

from fl_lightning.types import Pull, Snapshot


@dataclass(frozen=True)
class Turn:
    """Who trains, and how it differs from the others.

    Attributes:
        client: its id.
        start: the model to start from, where that is not the global one.
        period: how often the client has trained in this round already; its random numbers differ.
        epochs: fewer local epochs than the settings say.
        slowness: it does only 1 / slowness of its steps.
        pull: what draws its parameters somewhere, in place of a proximal term.
    """

    client: int
    start: Snapshot | None = None
    period: int = 0
    epochs: int | None = None
    slowness: float = 1.0
    pull: Pull | None = None
