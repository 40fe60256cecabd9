"""The engine ``auto``: whichever trains a client fastest here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fl_lightning.errors import FederationError

CANDIDATES = ("trainer", "fabric", "stacked")
_GAIN = 0.95
"""An engine is preferred to the one before it if it needs less than this share of its time."""


@dataclass(frozen=True)
class Trial:
    """How an engine did on this rank's first clients.

    Attributes:
        seconds: per step of a client.
        refused: why it cannot train them; empty where it can.
    """

    seconds: float = 0.0
    refused: str = ""


def attempt(measure: Callable[[str], float]) -> dict[str, Trial]:
    """Try each engine.

    Args:
        measure: seconds per step of an engine; raises where it cannot train them.
    """
    trials: dict[str, Trial] = {}
    for name in CANDIDATES:
        try:
            trials[name] = Trial(measure(name))
        except Exception as error:
            if name == CANDIDATES[0]:
                raise
            trials[name] = Trial(
                refused=str(error) if isinstance(error, FederationError) else f"{type(error).__name__}: {error}"
            )
    return trials


def choose(ranks: Sequence[Mapping[str, Trial]]) -> tuple[str, str]:
    """The engine for all ranks, and why.

    Args:
        ranks: what each rank measured; one without clients has nothing.

    Returns:
        Its name, and a sentence.
    """
    known = [trials for trials in ranks if trials]
    seconds: dict[str, float] = {}
    reasons: list[str] = []
    for name in CANDIDATES:
        refusals = [trials[name].refused for trials in known if trials[name].refused]
        if refusals:
            reasons.append(f"{name} is not possible: {refusals[0]}")
        else:
            seconds[name] = sum(trials[name].seconds for trials in known) / max(1, len(known))
    chosen = CANDIDATES[0]
    for name in seconds:
        if seconds[name] < _GAIN * seconds[chosen]:
            chosen = name
    figures = ", ".join(f"{name} {1000 * value:.2f} ms" for name, value in seconds.items())
    return chosen, " ".join([f"Local training by the engine '{chosen}': a client's step took {figures}.", *reasons])
