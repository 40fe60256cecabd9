"""Choose the engine that trains a client in the least time on this machine, for ``engine: fastest``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fl_lightning.clients.engines.selection import ENGINES, LocalEngine
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.errors import FederationError
from fl_lightning.messages import ClientTask
from fl_lightning.settings.local_training import LocalTraining

CANDIDATES = tuple(ENGINES)
_CLIENTS, _STEPS = 3, 10
"""The number of clients and steps for timing an engine."""
_GAIN = 0.95
"""An engine replaces the previous choice only if it takes less than this share of its time."""


@dataclass(frozen=True)
class Trial:
    """Hold the result of timing an engine on this rank's first clients.

    Attributes:
        seconds: the time per step of a client.
        refused: the reason why it cannot train them; empty if it can.
    """

    seconds: float = 0.0
    refused: str = ""


def time_engines(
    tasks: Sequence[ClientTask], engine: LocalEngine, local: LocalTraining, trainer: Callable[[LocalEngine], LocalTrainer]
) -> dict[str, Trial]:
    """Time each engine on some clients, and discard the results; return an empty dictionary without clients.

    Args:
        tasks: tasks of this rank.
        engine: the engine to derive the others from.
        local: the settings of the local training.
        trainer: a function that returns a trainer for clients that train alone, given an engine.
    """
    if not tasks:
        return {}
    limit = _STEPS if local.max_steps == -1 else min(_STEPS, local.max_steps)

    def measure(name: str) -> float:
        """Return the seconds per step of a client, from a second run."""
        engine.check(name)
        together = ENGINES[name].side_by_side
        other = trainer(engine.other(name, engine=name, max_steps=limit, compile=local.compile and together))
        chosen = [replace(task, start=None) for task in tasks[: local.stack_size if together else _CLIENTS]]
        seconds, steps = 0.0, 1
        for _ in range(2):
            begun = time.perf_counter()
            groups = [chosen] if together else [[task] for task in chosen]
            steps = sum(result.update.num_steps for group in groups for result in other.train(group))
            seconds = time.perf_counter() - begun
        return seconds / max(1, steps)

    return attempt(measure)


def attempt(measure: Callable[[str], float]) -> dict[str, Trial]:
    """Try each engine.

    Args:
        measure: a function that returns an engine's seconds per step, or raises if it cannot train the clients.
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
    """Choose the engine for all ranks.

    Args:
        ranks: the measurements of each rank; empty for a rank without clients.

    Returns:
        The name of the engine, and a sentence that gives the reason.
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
    return chosen, " ".join([f"Local training uses the engine '{chosen}': a client's step took {figures}.", *reasons])
