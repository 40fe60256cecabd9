"""Save and compare the state of a federation in a checkpoint, as tensors and plain Python types."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.clients.engines.selection import ENGINES, possible_engines
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.pool import ClientPool
from fl_lightning.core.hooks import ServerHooks
from fl_lightning.core.option import guarantees
from fl_lightning.core.resume_rule import Kind
from fl_lightning.errors import CheckpointError
from fl_lightning.functional.model_parts import copy_of_tensors, restore_tensors
from fl_lightning.functional.partition import Partition
from fl_lightning.reporting.rounds import Totals
from fl_lightning.server.resume.changes import Change, changes, in_words, of_clients
from fl_lightning.server.resume.fingerprint import Fingerprint
from fl_lightning.server.resume.sites import other_sites
from fl_lightning.settings.federation import FederationSettings

FORMAT = 5
_EQUAL = " or ".join(name for name, kind in ENGINES.items() if kind.equals_trainer)
"""The engines of local training whose results on a CPU are equal to the last bit."""


class RunState:
    """Save and check the state that a resumed run must share with its checkpoint.

    Random draws depend on (seed, round, client), so apart from the seed only the clients' stored tensors are state.

    Args:
        owner: the settings of the federation.
    """

    def __init__(self, owner: FederationSettings) -> None:
        self._owner = owner
        self.num_clients = 0
        self.client_names: tuple[str, ...] = ()
        self._partition = ""
        self._sites: list[list[Any]] = []
        self._contents: list[list[Any]] = []
        self.memory = ClientMemory()
        self.pool: ClientPool | None = None
        self.last_scores: dict[int, float] = {}
        self.saved_round = self.finished_round = -1
        self.totals = Totals()
        self.hooks: Mapping[str, ServerHooks] = {}
        """The hooks of the options in use, by name."""
        self.engine: str | None = None
        self.moving: tuple[str, ...] = ()
        self.unsent: tuple[str, ...] | None = None
        self.held: Callable[[], Iterable[str]] = tuple
        self.tensor_names: Callable[[], Sequence[list[str]]] = list
        self.rounds: int | None = None
        self.rounds_are_known = False
        self.federation = uuid4().hex
        self.fingerprint: Fingerprint | None = None
        self._random_state: dict[str, Any] | None = None
        self._weights: dict[str, Tensor] | None = None

    def begin(
        self,
        training: Partition,
        names: Sequence[str],
        contents: Sequence[str] = (),
        remote: bool = False,
        continues: bool = False,
    ) -> None:
        """Prepare for a fit. It may continue a checkpoint, which is loaded later.

        Args:
            training: the clients' training examples.
            names: the names of the clients in ``contents``.
            contents: digests of the clients' training examples; empty without any.
            remote: whether the clients are sites, whose numbers and sizes a resumed run must know again.
            continues: whether the fit continues the previous one of the same Trainer.
        """
        if not continues:
            self.reset()
            self.hooks = {}
        self.pool = self._random_state = self._weights = None
        self._sites = [[name, int(n)] for name, n in zip(training.names or (), training.sizes, strict=False)] if remote else []
        self.num_clients, self.client_names = len(training), training.names or ()
        self._partition = training.digest()
        self._contents = [list(one) for one in zip(names, training.sizes.tolist(), contents, strict=False)]
        self.fingerprint = self.unsent = None
        self.federation = uuid4().hex  # a resumed fit takes the checkpoint's

    def use(self, hooks: Mapping[str, ServerHooks]) -> None:
        """Take the hooks of the options in use; a fit that continues the previous one has their state, too."""
        for name in hooks.keys() & self.hooks.keys():
            hooks[name].load_state_dict(self.hooks[name].state_dict())
        self.hooks = hooks

    def reset(self) -> None:
        """Discard all state before the first round."""
        self.memory.forget()
        self.totals.reset()
        self.last_scores, self.saved_round, self.finished_round = {}, -1, -1
        self.moving, self.engine = (), None
        self.rounds, self.rounds_are_known = None, False

    @property
    def schedules(self) -> bool:
        """Return whether the module configures learning-rate schedules, as far as is known."""
        return self.fingerprint is not None and bool(self.fingerprint.settings.get("model.lr_scheduler"))

    def note_rounds(self, rounds: int | None) -> None:
        """Store the number of rounds for which the run was started, which a resumed run keeps; None if it is unlimited."""
        self.rounds, self.rounds_are_known = rounds, True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "format": FORMAT,
            "settings": {} if self.fingerprint is None else self.fingerprint.settings,
            "strategy_state": self._owner.strategy.state_dict(),
            "route_state": self._owner.route.state_dict(),
            "memory": (self.pool or self.memory).state_dict(),
            "last_scores": dict(self.last_scores),
            "totals": self.totals.state_dict(),
            "options": {name: hook.state_dict() for name, hook in self.hooks.items()},
            "engine": self.engine,
            "moving": list(self.moving),
            "held": list(self.held()),
            "unsent": [] if self.unsent is None else [list(self.unsent)],
            "rounds": [self.rounds] if self.rounds_are_known else [],
            "federation": self.federation,
            "guarantees": guarantees(self._owner.active_options),
            "clients": self.num_clients,
            "client_names": list(self.client_names),
            "tensor_names": [list(names) for names in self.tensor_names()[:3]],
            "partition": self._partition,
            "sites": self._sites,
            "contents": self._contents,
            "threads": torch.get_num_threads(),
            "random_state": _random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, after :meth:`compare`."""
        self._owner.strategy.load_state_dict(state["strategy_state"])
        self._owner.route.load_state_dict(state.get("route_state", {}))
        self.memory.load_state_dict(state["memory"])
        self.last_scores = dict(state["last_scores"])
        self.totals.load_state_dict(state["totals"])
        for name in self.hooks.keys() & state.get("options", {}).keys():
            self.hooks[name].load_state_dict(state["options"][name])
        self.engine = state.get("engine")
        self.moving = tuple(state.get("moving", ()))
        self.unsent = next((tuple(names) for names in state.get("unsent", [])), None)
        self.rounds, self.rounds_are_known = None, False
        for rounds in state.get("rounds", []):
            self.note_rounds(rounds)
        self.federation = state.get("federation", self.federation)
        self._random_state = state["random_state"]

    def compare(self, state: dict[str, Any], device: torch.device, other_weights: str = "") -> list[Change]:
        """Refuse a checkpoint that this federation cannot continue, and warn about differences that change last bits.

        Args:
            state: the state in the checkpoint.
            device: the device on which clients train.
            other_weights: a description of how the checkpoint's model differs from this run's; empty if it does not.

        Returns:
            The settings that differ, if ``federation.resume_changed`` allows it.

        Raises:
            CheckpointError: if the run cannot continue; it names all differences.
        """
        if state.get("format") != FORMAT:
            raise CheckpointError(
                f"The checkpoint has format {state.get('format')}, but this version of fl_lightning reads format {FORMAT}. "
                "Resume with the version that wrote it, or begin a new federation with its weights: load them into the module "
                "with 'load_from_checkpoint' before the fit."
            )
        kind = Kind.ON_PURPOSE if state.get("partition") == self._partition else Kind.STAYS
        found = of_clients(changes(*self._settings(state, device)), state.get("contents", ()), self._contents, kind)
        problems = [f"The checkpoint was written with {in_words(found)}."] if found else []
        others = [other_weights, *self._other_clients(state)]
        problems += [problem for problem in others if problem]
        stays = [change.name for change in found if change.kind is Kind.STAYS]
        asked = self._owner.resume_changed
        if stays or any(others) or (found and not asked):
            raise CheckpointError(" ".join([*problems, _remedy(stays, any(others), asked)]))
        if state["threads"] != torch.get_num_threads():
            threads = state["threads"]
            warnings.warn(
                f"The checkpoint was written with {threads} threads per client, but this run has {torch.get_num_threads()}, so "
                f"the last bits of the result will differ. Set 'federation.local.threads' to {threads} to avoid this.",
                stacklevel=2,
            )
        return found

    def _settings(self, state: dict[str, Any], device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings of the checkpoint and of this run, with the actual engines."""
        assert self.fingerprint is not None
        both: list[dict[str, Any]] = []
        for settings in (state["settings"], self.fingerprint.settings):
            federation = settings["federation"]
            local = federation["local"]
            chosen = local["engine"] not in ENGINES
            engine = state["engine"] or local["engine"] if chosen else local["engine"]
            equal = device.type == "cpu" and all(kind.equals_trainer for kind in possible_engines(engine))
            local = local | {"engine": _EQUAL if equal else engine}
            both.append(settings | {"federation": federation | {"local": local}})
        return both[0], both[1]

    def _other_clients(self, state: dict[str, Any]) -> list[str]:
        """Return the differences in clients, their examples and what options guarantee."""
        problems = []
        before, now = state.get("guarantees", ""), guarantees(self._owner.active_options)
        if before != now:
            problems.append(
                f"The checkpoint was written with {before or 'no such protection'}, but this run has {now or 'none'}, and no "
                "single epsilon covers both."
            )
        if self._sites and state.get("sites"):
            strategy = self._owner.strategy
            fixed = [] if strategy.clients_may_join else [f"'federation.strategy' {type(strategy).__name__}"]
            fixed += [f"'federation.{option.setting}'" for option in self._owner.active_options if not option.clients_may_join]
            problems += other_sites(state["sites"], self._sites, now or next(iter(fixed), ""))
        elif state["clients"] != self.num_clients:
            problems.append(f"The checkpoint has {state['clients']} clients, but this run has {self.num_clients}.")
        elif state["partition"] != self._partition:
            problems.append(
                "The checkpoint's clients have different training examples from this run's. Resume with the same data, the "
                "same partitioner and seed, and the same 'data.client_validation', 'client_test' and 'public_share'."
            )
        return problems

    def hold_weights(self, module: LightningModule) -> None:
        """Keep a checkpoint's weights if the module may load others in ``on_fit_start``, as before the first round."""
        if self._random_state is not None and is_overridden("on_fit_start", module):
            self._weights = copy_of_tensors(module)

    def continue_from(self, module: LightningModule) -> None:
        """Restore the global random state of the checkpoint, and its weights if the module may have loaded others, once."""
        if self._random_state is not None:
            _set_random_state(self._random_state)
            self._random_state = None
        if self._weights is not None:
            restore_tensors(module, self._weights)
            self._weights = None


def _remedy(stays: Sequence[str], others: bool, allowed: bool) -> str:
    """Return advice on settings that differ.

    Args:
        stays: the settings that a resumed run must not change.
        others: whether clients or the model differ.
        allowed: whether ``federation.resume_changed`` is true.
    """
    again = "or start again without 'ckpt_path'."
    if not stays and not others:
        return f"Resume with the same settings, set 'federation.resume_changed' to true to change them on purpose, {again}"
    names = ", ".join(f"'{name}'" for name in stays)
    limit = f" 'federation.resume_changed' does not allow changes to {names or 'these'}." if allowed else ""
    return f"Resume with the same settings, {again}{limit}"


def _random_state() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
