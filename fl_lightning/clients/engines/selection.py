"""Choose the engine that trains the clients, and fall back to a Trainer under ``engine: auto``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.clients.engines.base import Engine, LocalResult, PreparedTask
from fl_lightning.clients.engines.fabric.engine import FabricEngine
from fl_lightning.clients.engines.stacked.engine import StackedEngine
from fl_lightning.clients.engines.trainer import TrainerEngine
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.errors import EngineError
from fl_lightning.messages import ModelLayout

ENGINES: dict[str, type[Engine]] = {"trainer": TrainerEngine, "fabric": FabricEngine, "stacked": StackedEngine}
"""The engines by their names in ``federation.local.engine``."""


def possible_engines(name: str) -> list[type[Engine]]:
    """Return the engines that a setting can select."""
    return [ENGINES[name] for name in (("trainer", "fabric") if name == "auto" else (name,))]


def automatic_engine(resident: ResidentModel, place: Place) -> tuple[str, str]:
    """Return the engine that ``auto`` selects, and the reason: the lean loop if its results equal a Trainer's bit for bit.

    The choice depends only on the module and the settings, so every rank and every run makes the same choice.
    """
    if place.device.type not in ("cpu", "cuda"):  # tools/gpu_checks.py compares them on a GPU
        return "trainer", f"the lean loop has not been compared with a Trainer on '{place.device.type}'"
    try:
        FabricEngine(resident, place)
    except EngineError as error:
        return "trainer", str(error)
    return "fabric", "it gives the same weights as a Trainer, to the last bit, in less time"


class LocalEngine:
    """Train clients with one of the engines, which is built on first use and rebuilt when the layout changes.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.
        name: the name of the engine.
        falls_back: whether to repeat a turn that the engine refuses on a Trainer, as under ``auto``.
    """

    def __init__(self, resident: ResidentModel, place: Place, name: str, falls_back: bool = False) -> None:
        self._resident, self._place, self.name, self._falls_back = resident, place, name, falls_back
        self._engine: Engine | None = None
        self._layout: ModelLayout | None = None

    def choose(self, name: str) -> None:
        """Use another engine from now on."""
        self.name, self._engine = name, None

    @property
    def kind(self) -> type[Engine]:
        """Return the engine's class, whose flags describe its abilities."""
        return ENGINES[self.name]

    def _current(self) -> Engine:
        layout = self._resident.server.layout
        if self._engine is None or self._layout is not layout:
            self._engine, self._layout = self.kind(self._resident, self._place), layout
        return self._engine

    def fit(self, tasks: Sequence[PreparedTask]) -> Iterator[LocalResult]:
        """Train clients; see :meth:`Engine.fit`. Under ``auto``, repeat a task that the lean loop refuses on a Trainer."""
        waiting = {id(task): task for task in tasks}

        def noted(result: LocalResult) -> LocalResult:
            waiting.pop(id(result.prepared))
            return result

        try:
            yield from map(noted, self._current().fit(tasks))  # 'map' keeps no result
        except EngineError as error:
            if not self._falls_back or self.name == "trainer":
                raise
            rank_zero_info(f"Local training continues with the engine 'trainer'. {error}")
            self.choose("trainer")
            yield from self._current().fit(list(waiting.values()))

    def recover(self) -> None:
        """Clean up after a client's error."""
        if self._engine is not None:
            self._engine.recover()

    def close(self) -> None:
        """Release the engine and the data of its last client; :meth:`fit` builds a new one."""
        self._engine = None

    def other(self, **changes: Any) -> LocalEngine:
        """Return another engine for clients that train alone: without rules, options and deadlines.

        Args:
            changes: new values for fields of :class:`LocalTraining`, such as ``max_epochs``.
        """
        local = replace(self._place.local, proximal_mu=0.0, **changes)
        place = replace(self._place, local=local, rules=(), hooks=(), deadline=None)
        name = "fabric" if self.kind.side_by_side else self.name
        return LocalEngine(self._resident, place, name, self._falls_back)
