"""What of a federation must be in a checkpoint beside Lightning's own: tensors and plain Python types only."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_lightning.callbacks.client_evaluation import ClientScores
from fl_lightning.callbacks.privacy_account import PrivacyAccount
from fl_lightning.callbacks.privacy_checks import privacy_in_words
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.errors import CheckpointError
from fl_lightning.functional.partition import Partition

if TYPE_CHECKING:
    from fl_lightning.callbacks.orchestrator import FederatedOrchestrator

FORMAT = 3


class RunState:
    """Saves and checks what makes a resumed run the same run.

    Cohorts and clients draw from (seed, round, client): beside the seed, only what clients keep over rounds is state.

    Args:
        owner: the orchestrator.
    """

    def __init__(self, owner: FederatedOrchestrator) -> None:
        self._owner = owner
        self.num_clients = 0
        self._partition = ""
        self.memory = ClientMemory()
        self.account = PrivacyAccount()
        self.client_scores = ClientScores()
        self.engine: str | None = None
        self._random_state: dict[str, Any] | None = None

    def begin(self, training: Partition, noise: float = 0.0) -> None:
        """Set up for a fit, which may go on from an earlier one.

        Args:
            training: the clients' training examples.
            noise: on the clients' inputs.
        """
        self.num_clients = len(training)
        self._partition = f"{training.digest()} {noise}"

    def state_dict(self) -> dict[str, Any]:
        """Everything, ready for a checkpoint."""
        return {
            "format": FORMAT,
            "strategy": type(self._owner.strategy).__name__,
            "strategy_state": self._owner.strategy.state_dict(),
            "route": type(self._owner.route).__name__,
            "route_state": self._owner.route.state_dict(),
            "memory": self.memory.state_dict(),
            "client_scores": self.client_scores.state_dict(),
            "engine": self.engine,
            "privacy": privacy_in_words(self._owner.transforms, self._owner.local),
            "privacy_account": self.account.state_dict(),
            "seed": self._owner.seed,
            "clients_per_round": self._owner.clients_per_round,
            "clients": self.num_clients,
            "partition": self._partition,
            "threads": torch.get_num_threads(),
            "random_state": _random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint over.

        Raises:
            CheckpointError: if it was written by a federation that this one cannot continue.
        """
        if state.get("format") != FORMAT:
            raise CheckpointError(
                f"The checkpoint holds a federation in format {state.get('format')}, this version of fl_lightning reads format "
                f"{FORMAT}. Resume with the version that wrote it."
            )
        self._compare(state)
        self._owner.strategy.load_state_dict(state["strategy_state"])
        self._owner.route.load_state_dict(state.get("route_state", {}))
        self.memory.load_state_dict(state["memory"])
        self.account.load_state_dict(state["privacy_account"])
        self.client_scores.load_state_dict(state["client_scores"])
        self.engine = state.get("engine")
        self._random_state = state["random_state"]

    def _compare(self, state: dict[str, Any]) -> None:
        """Refuse another federation; warn of another number of threads."""
        owner = self._owner
        mine = {
            "strategy": type(owner.strategy).__name__,
            "route": type(owner.route).__name__,
            "seed": owner.seed,
            "clients_per_round": owner.clients_per_round,
        }
        for setting, value in mine.items():
            if state[setting] != value:
                raise CheckpointError(
                    f"The checkpoint was written with 'federation.{setting}' {state[setting]!r}, but this run has {value!r}. "
                    "Resume with the same setting, or start again without 'ckpt_path'."
                )
        before, now = state.get("privacy", ""), privacy_in_words(owner.transforms, owner.local)
        if before != now:
            raise CheckpointError(
                f"The checkpoint's rounds were done with {before or 'no differential privacy'}, and this run has "
                f"{now or 'none'}: no epsilon would be true of both. Resume with the same settings, or start again without "
                "'ckpt_path'."
            )
        if state["threads"] != torch.get_num_threads():
            threads = state["threads"]
            warnings.warn(
                f"The checkpoint was written with {threads} threads per client, this run has {torch.get_num_threads()}: the "
                f"last bits of the result will differ. Set 'federation.local.threads' to {threads} to avoid it.",
                stacklevel=2,
            )
        if state["clients"] != self.num_clients:
            raise CheckpointError(
                f"The checkpoint holds a federation of {state['clients']} clients, this run has {self.num_clients}. Resume "
                "with the same data and partitioner, or start again without 'ckpt_path'."
            )
        if state["partition"] != self._partition:
            raise CheckpointError(
                "The checkpoint's clients held other training examples than those of this run. Resume with the same data, "
                "partitioner and its seed, 'data.client_validation', 'client_test', 'public_share' and 'feature_noise', or "
                "start again without 'ckpt_path'."
            )

    def restore_random_state(self) -> None:
        """Put the global random state of the checkpoint in place, once."""
        if self._random_state is not None:
            _set_random_state(self._random_state)
            self._random_state = None


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
