"""Record what a federation computes: digests of its tensors, and its figures as text."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor

from fl_lightning import ClientFailure, ClientUpdate, FederationCallback, Strategy
from fl_lightning.types import RoundStart

TIMES = ("seconds", "federation/wait", "_per_second")
"""Parts of the names of figures that a clock decides, which differ from run to run."""

RoundRecord = dict[str, Any]
_MODULE = re.compile(r"(?<=\bfl_lightning\.)([a-z_0-9]+\.)+(?=[A-Z])")
"""The modules in the paths of the package's classes, which may move."""


def is_time(name: object) -> bool:
    """Return whether a clock decides the value of this name."""
    return any(part in str(name) for part in TIMES)


def digest(value: Any) -> str:
    """Return the first 12 hex digits of the SHA-256 of a value: of its tensors' bytes, and of plain values by name."""
    found = hashlib.sha256()
    _feed(found.update, value)
    return found.hexdigest()[:12]


def _feed(update: Callable[[bytes], Any], value: Any) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        update(f"tensor {plain.dtype} {tuple(plain.shape)} ".encode())
        update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, Mapping):
        update(f"mapping {len(value)} ".encode())
        for key in sorted(value, key=repr):
            if not is_time(key):
                _feed(update, [repr(key), value[key]])
    elif isinstance(value, list | tuple):
        update(f"sequence {len(value)} ".encode())
        for part in value:
            _feed(update, part)
    elif isinstance(value, set | frozenset):
        _feed(update, sorted(value, key=repr))
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(update, {field.name: getattr(value, field.name) for field in fields(value) if field.compare})
    elif isinstance(value, bytes):
        update(f"bytes {len(value)} ".encode() + value)
    else:
        update(f"{type(value).__name__} {_MODULE.sub('', repr(value))} ".encode())


def figures(update: ClientUpdate) -> dict[str, str]:
    """Return the plain fields of an update as text, by name."""
    values = {field.name: getattr(update, field.name) for field in fields(update) if not is_time(field.name)}
    return {name: repr(value) for name, value in values.items() if isinstance(value, int | float | str | None | Mapping)}


def read_by_strategy(update: ClientUpdate) -> str:
    """Return a digest of an update as a strategy gets it."""
    moved = getattr(update.model, "moved", {})
    return digest([figures(update), update.state, update.counters, moved, dict(update.extras)])


class Recorder(FederationCallback):
    """Record each round as the hooks of a federation and its strategy see it; both halves of a resumed run share one."""

    def __init__(self) -> None:
        self.rounds: dict[int, RoundRecord] = {}
        self._now: RoundRecord = {}

    def on_round_start(self, trainer: Any, pl_module: Any, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Begin a round's record."""
        lists: dict[str, Any] = {name: defaultdict(list) for name in ("clients", "strategy reads", "fields")}
        self._now = {"cohort": list(cohort), "hooks": [], "failures": [], "logger": [], "returns": [], **lists}
        self.rounds[round_idx] = self._now

    def on_client_start(self, trainer: Any, pl_module: Any, round_idx: int, client: int) -> None:
        self._now["hooks"].append(f"client {client} starts")

    def on_client_end(self, trainer: Any, pl_module: Any, update: ClientUpdate) -> None:
        """Record a client's update, with its model."""
        self._now["hooks"].append(f"client {update.client} ends")
        self._now["clients"][update.client].append(digest(update))
        self._now["fields"][update.client].append(figures(update))

    def on_client_failed(self, trainer: Any, pl_module: Any, failure: ClientFailure) -> None:
        """Record a failure without the wording of its cause."""
        cause = failure.cause.partition(":")[0] if ":" in failure.cause else "other"
        self._now["failures"].append([failure.client, failure.round_idx, failure.attempts, cause])

    def on_aggregated(self, trainer: Any, pl_module: Any, updates: list[ClientUpdate]) -> None:
        """Record the updates with their weights."""
        ordered = sorted(updates, key=lambda update: (update.client, update.round_idx))
        self._now["aggregated"] = digest([figures(update) for update in ordered])
        self._now["aggregated fields"] = [figures(update) for update in ordered]

    def on_round_end(self, trainer: Any, pl_module: Any, round_idx: int) -> None:
        """Record everything logged and the new model."""
        self._now["logged"] = texts(trainer.callback_metrics)
        self._now["model"] = digest(dict(pl_module.state_dict()))

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Record a call of the strategy: the start of a round, the updates that it reads, the state that it returns."""
        if not self._now:
            return
        for arg in args:
            if isinstance(arg, RoundStart):
                self._now["start"] = digest(arg)
            for update in arg if isinstance(arg, list | tuple) else [arg]:
                if isinstance(update, ClientUpdate):
                    self._now["strategy reads"][update.client].append(read_by_strategy(update))
        if name in ("aggregate", "combine"):
            self._now["returns"].append(digest(result))

    @contextmanager
    def watching(self, strategy: Strategy) -> Iterator[None]:
        """Record the calls of a strategy, whose classes are changed meanwhile: attributes of its own would look like settings.

        Any public method may be renamed: what matters is what it is given.
        """
        depth = [0]

        def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def call(this: Any, *args: Any, **kwargs: Any) -> Any:
                depth[0] += 1
                reads = depth[0] == 1 and this is strategy and name not in AFTERWARDS
                given = (*args, *kwargs.values())
                if reads:
                    self.note("", given, None)  # before the strategy changes anything in place
                try:
                    result = method(this, *args, **kwargs)
                finally:
                    depth[0] -= 1
                if reads:
                    self.note(name, (), result)
                return result

            return call

        with ExitStack() as stack:
            for kind in type(strategy).__mro__:
                if kind is not object and issubclass(kind, Strategy):
                    for name, method in list(vars(kind).items()):
                        if not name.startswith("_") and hasattr(method, "__code__"):
                            stack.enter_context(patch.object(kind, name, watched(name, method)))
            yield


AFTERWARDS = ("influence", "weight")
"""Methods of a strategy that are asked about an update that it has read."""


class Lines(Logger):
    """Record what is written to a logger, in the round's record."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @property
    def name(self) -> str:
        """Return a name, which the base class asks for."""
        return "bits"

    @property
    def version(self) -> int:
        """Return a number, which the base class asks for."""
        return 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Ignore settings, which the checkpoint has."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record a line of numbers."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | Tensor)}
        if self._recorder.rounds:
            last = self._recorder.rounds[max(self._recorder.rounds)]
            last["logger"].append(digest([step, texts(numbers)]))


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return numbers as exact text, by name, without times."""
    return {name: repr(float(values[name])) for name in sorted(values) if not is_time(name)}


def merged(ranks: list[dict[int, RoundRecord]]) -> dict[str, Any]:
    """Return the rounds of a run from those of its ranks: a digest for each thing, and the fields of the first round.

    The first rank has what all ranks have. Each has the updates of the clients that it trained.
    """
    found: dict[str, Any] = {}
    for round_idx, first in sorted(ranks[0].items()):
        rounds = [rank[round_idx] for rank in ranks]
        clients = digest(_union(rounds, "clients"))
        reads = digest({client: sorted(set(values)) for client, values in _union(rounds, "strategy reads").items()})
        hooks = [one["hooks"] for one in rounds]
        record: dict[str, Any] = {"clients": clients, "strategy reads": reads}
        record["hooks"] = digest(hooks[0] if len(ranks) == 1 else _sorted(hooks))
        record |= {"logger": digest(first["logger"]), "strategy returns": first["returns"]}
        record |= {
            name: first[name] for name in ("cohort", "start", "failures", "aggregated", "logged", "model") if name in first
        }
        if round_idx == min(ranks[0]):
            record["fields at the clients"] = _union(rounds, "fields")
            record["fields at the server"] = first.get("aggregated fields", [])
        found[f"round {round_idx}"] = record
    return found


def _sorted(hooks: list[list[str]]) -> list[str]:
    return sorted(name for own in hooks for name in own)


def _union(rounds: list[RoundRecord], name: str) -> dict[str, list[Any]]:
    found = defaultdict[int, list[Any]](list)
    for one in rounds:
        for client, values in one[name].items():
            found[client] += values
    return {f"client {client}": found[client] for client in sorted(found)}


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each place in which two files differ, except the wording of refusals."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                yield f"{place}{key}: only in the {'first' if key in one else 'second'} file"
            elif key != "message":
                yield from differences(one[key], other[key], f"{place}{key} / ")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for position, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}{position} / ")
    elif one != other:
        yield f"{place.removesuffix(' / ')}: {one} became {other}"


def of_checkpoint(path: Path) -> dict[str, Any]:
    """Return a digest for each part of a checkpoint, and of each part of the orchestrator's state in it."""
    content = torch.load(path, weights_only=True)
    states = content.pop("callbacks")  # others hold the paths of files
    state = next(own for key, own in states.items() if "Orchestrator" in key)
    for name, parts in RANDOM.items():
        part = state.pop(name)
        if parts:
            state[name] = {option: {k: v for k, v in own.items() if k not in parts} for option, own in part.items()}
    memory = state["memory"]  # by client, and by a word what is in files
    state["memory"] = {client: kept if isinstance(client, int) else "in files" for client, kept in memory.items()}
    return {name: digest(part) for name, part in content.items()} | {f"federation: {k}": digest(v) for k, v in state.items()}


RANDOM: dict[str, tuple[str, ...]] = {"federation": (), "options": ("run",)}
"""Parts of the orchestrator's state that are new in each run: the federation's id, and a run's in an option's state. The names
of files are new as well, but the digest of what clients keep covers their content."""
