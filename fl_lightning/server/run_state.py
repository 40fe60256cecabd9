"""Save and restore the state of a federation in a checkpoint, as plain Python types, and find the files that one needs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.clients.client_files import References
from fl_lightning.clients.memory import ClientMemory, references_of
from fl_lightning.core.federation import Federation
from fl_lightning.core.option import ServerHooks, guarantees
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.functional.model_parts import copy_of_tensors, restore_tensors
from fl_lightning.functional.seeding import RandomNumbers
from fl_lightning.reporting.rounds import Totals
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.utilities.checkpoints import checkpoint_folders

FORMAT = 7


class RunState:
    """Save and restore the state that a resumed run continues from.

    Random draws depend on (seed, round, client), so apart from the seed only the clients' stored tensors are state.

    Args:
        owner: the settings of the federation.
    """

    def __init__(self, owner: FederationSettings) -> None:
        self._owner = owner
        self.client_names: tuple[str, ...] = ()
        self._data: dict[str, Any] = {}
        self.memory = ClientMemory()
        self.live: Federation | None = None
        """The federation of the current fit, from its start."""
        self.last_scores: dict[int, float] = {}
        self.saved_round = self.finished_round = -1
        self.totals = Totals()
        self.hooks: Mapping[str, ServerHooks] = {}
        """The hooks of the options in use, by name."""
        self.moving: tuple[str, ...] = ()
        self.unsent: tuple[str, ...] | None = None
        self.rounds: list[int | None] = []
        """The number of rounds for which the run was started, None if unlimited; empty before that is known."""
        self.run_id = uuid4().hex
        self.settings: dict[str, Any] = {}
        """Every setting that can change the result, by section; empty until the fit starts."""
        self._random_state: dict[str, Any] | None = None
        self._weights: dict[str, Tensor] | None = None

    def begin(self, data: FederatedDataModule, continues: bool = False) -> None:
        """Prepare for a fit. It may continue a checkpoint, which is loaded later.

        Args:
            data: the clients' data, set up for a fit.
            continues: whether the fit continues the previous one of the same Trainer.
        """
        if not continues:
            self.reset()
            self.hooks = {}
        self.live = self._random_state = self._weights = self.unsent = None
        self.settings = {}
        training, self.client_names = data.indices, data.indices.names or ()
        sites = zip(self.client_names, training.sizes.tolist(), strict=True) if data.is_remote else ()
        self._data = {"clients": len(training), "partition": training.digest(), "sites": [list(site) for site in sites]}
        self.run_id = uuid4().hex  # a resumed fit takes the checkpoint's

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
        self.moving, self.rounds = (), []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        live = self.live
        return {
            "format": FORMAT,
            "settings": self.settings,
            **self.terms(),
            "strategy_state": self._owner.strategy.state_dict(),
            "route_state": self._owner.route.state_dict(),
            "memory": (self.memory if live is None else live.pool).state_dict(),
            "last_scores": dict(self.last_scores),
            "totals": self.totals.state_dict(),
            "options": {name: hook.state_dict() for name, hook in self.hooks.items()},
            "moving": list(self.moving),
            "held": [] if live is None else list(live.server.held_tensors()),
            "unsent": [] if live is None else [list(live.server.apart["unsent"])],
            "rounds": list(self.rounds),
            "federation": self.run_id,
            "client_names": list(self.client_names),
            "tensor_names": [] if live is None else [list(names) for names in live.server.names()[:3]],
            "threads": torch.get_num_threads(),
            "random_state": _random_state(),
        }

    def terms(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with its checkpoint beside settings: guarantees, clients, data."""
        return {"guarantees": guarantees(self._owner.active_options) or "none", **self._data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, after :func:`~fl_lightning.server.resume.compare`."""
        self._owner.strategy.load_state_dict(state["strategy_state"])
        self._owner.route.load_state_dict(state["route_state"])
        self.memory.load_state_dict(state["memory"])
        self.last_scores = dict(state["last_scores"])
        self.totals.load_state_dict(state["totals"])
        for name in self.hooks.keys() & state["options"].keys():
            self.hooks[name].load_state_dict(state["options"][name])
        self.moving = tuple(state["moving"])
        self.unsent = next((tuple(names) for names in state["unsent"]), None)
        self.rounds, self.run_id = list(state["rounds"]), state["federation"]
        self._random_state = state["random_state"]

    def hold_weights(self, module: LightningModule) -> None:
        """Keep a checkpoint's weights if the module may load others in ``on_fit_start``, as before the first round."""
        if self._random_state is not None and is_overridden("on_fit_start", module):
            self._weights = copy_of_tensors(module)

    def continue_from(self, module: LightningModule) -> None:
        """Restore the global random state of the checkpoint, and its weights if the module may have loaded others, once."""
        if self._random_state is not None:
            state = self._random_state
            cuda = state["cuda"] if torch.cuda.is_available() else None
            RandomNumbers(state["torch"], cuda, state["numpy"], state["python"], torch.device("cuda")).restore()
        restore_tensors(module, self._weights or {})
        self._random_state = self._weights = None


def _random_state() -> dict[str, Any]:
    now = RandomNumbers.now(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    name, keys, *rest = now.numpy
    return {"torch": now.cpu, "cuda": now.cuda, "numpy": (name, keys.tolist(), *rest), "python": now.python}


def checkpoint_references(trainer: Trainer) -> dict[Hashable, References] | None:
    """Return the files of client state to which each checkpoint in the Trainer's folders refers; None if one cannot be read."""
    try:
        paths = [path for folder in checkpoint_folders(trainer) for path in folder.glob("*.ckpt")]
        stats = [(path, path.stat()) for path in paths]
        return {(key := (path, stat.st_mtime_ns, stat.st_size)): _references(*key) for path, stat in stats}
    except Exception:
        return None


@lru_cache(maxsize=10_000)
def _references(path: Path, time: int, size: int) -> References:
    """Return the files to which a checkpoint refers, which is read once for each time and size."""
    checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    states = [state for state in checkpoint.get("callbacks", {}).values() if isinstance(state, dict)]
    return references_of(next((state["memory"] for state in states if "memory" in state), {}))
