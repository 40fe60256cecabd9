"""Settings of the server: which failures it bears, what it measures and stores, and where its clients are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning.pytorch import Trainer

from fl_lightning.core.capabilities import Capability, Removal, ResumeRule, Unassuming
from fl_lightning.errors import require
from fl_lightning.messages import ClientInfo
from fl_lightning.utilities.argument_types import checks_types
from fl_lightning.utilities.checkpoints import require_trusted


def require_number_or_share(setting: str, value: int | float) -> None:
    """Refuse what is neither a number of 1 or above nor a share.

    Raises:
        ConfigurationError: naming the setting.
    """
    fits = value >= 1 if isinstance(value, int) else 0 < value <= 1
    require(fits, setting, "a number of 1 or above, or a share in (0, 1]", value)


@checks_types
@dataclass(frozen=True)
class Faults:
    """Configure what happens when a client fails in a round.

    A failure is any error in the client's own training or data, including running out of memory on the CPU or GPU; a loss or
    weights that are not finite (unless the strategy copes with them); weights of another shape than the global model's;
    training beyond the deadline; no examples. Configuration errors are not client failures: they end the run.

    Args:
        policy: ``fatal`` ends the run with the client's error; ``skip`` leaves the client out of the round and reports it.
        retries: number of times that a failed client tries again before the policy applies, >= 0. It starts from the same model
            with the same random numbers, so a retry after running out of memory gives the same result.
        min_updates: number of good updates that a round needs: a whole number >= 1, or a share in (0, 1] of the clients drawn
            for the round, rounded up. With fewer the run ends; it can be resumed from the round before.
        deadline: seconds that a client's training may take in a round, > 0, checked between steps; null for no limit.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    policy: Literal["fatal", "skip"] = "fatal"
    retries: int = 0
    min_updates: int | float = 1
    deadline: float | None = None
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require(self.retries >= 0, "federation.faults.retries", "a whole number of 0 or above", self.retries)
        require_number_or_share("federation.faults.min_updates", self.min_updates)
        require(
            self.deadline is None or self.deadline > 0, "federation.faults.deadline", "above 0 seconds, or null", self.deadline
        )

    @property
    def skips(self) -> bool:
        """Whether a round continues without the clients that fail."""
        return self.policy == "skip"

    def needed(self, drawn: int) -> int:
        """Return how many good updates a round of ``drawn`` clients needs."""
        return self.min_updates if isinstance(self.min_updates, int) else math.ceil(self.min_updates * drawn - 1e-9)


@checks_types
@dataclass(frozen=True)
class ServerEvaluation:
    """Limit the cost of a strategy's measurements on the server's set. The aggregated model is always validated in full.

    A strategy such as AdaFed evaluates every client's model every round, which can be most of a round. The defaults measure
    exactly what the module logs in validation.

    Args:
        every_n_rounds: measure clients' models in rounds 0, n, 2n, ...; in between, a client keeps its last score, and one
            without a score is measured. Scores for Shapley values and routes are always measured.
        examples: number, or share in (0, 1], of the server's examples to use. They are drawn once by the federation's seed, in
            proportion to the classes if the dataset provides labels.
        batch_size: batch size of evaluation; null for that of the server's loader. It changes a metric by rounding if the
            module logs means over examples, and by more if it does not.
        precision: precision of evaluation; null for that of local training. If a precision is set here, local training must
            use 32-true or a mixed precision. Weights are computed from these scores, so their last digits depend on it.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    every_n_rounds: int = 1
    examples: int | float = 1.0
    batch_size: int | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None

    def __post_init__(self) -> None:
        require(self.every_n_rounds >= 1, "federation.server_evaluation.every_n_rounds", "1 or above", self.every_n_rounds)
        require_number_or_share("federation.server_evaluation.examples", self.examples)
        size = self.batch_size
        require(size is None or size >= 1, "federation.server_evaluation.batch_size", "1 or above", size)


@checks_types
@dataclass(frozen=True)
class Storage:
    """Limit the memory and the files of a run.

    Args:
        memory: the GiB that each rank may use for the models of a round, for a strategy such as FedMedian that needs all of
            them at once, and again for the state that clients keep between rounds, such as SCAFFOLD's control variates. The
            rest, and that state of more than 1,000 clients, is in files in ``trainer.default_root_dir``.
        disk: the GiB that files of the state that clients keep between rounds may take; the run ends after the first round in
            which they take more. None for no limit.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    memory: float = 4.0
    disk: float | None = None
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require(self.memory >= 0, "federation.storage.memory", "0 or above, in GiB", self.memory)
        require(self.disk is None or self.disk > 0, "federation.storage.disk", "above 0, in GiB, or null", self.disk)


@checks_types
@dataclass(frozen=True)
class Checkpoints:
    """Configure what checkpoints may contain, and from which ones a run may resume.

    Args:
        trusted_classes: the dotted paths of classes that checkpoints may contain besides tensors and plain values, such as
            classes in your module's hyperparameters. Constructing their objects must be harmless for any arguments.
        resume_changed: whether a resumed run may have settings that differ from its checkpoint, which is otherwise refused.

    Raises:
        ConfigurationError: if a class cannot be imported, or can run any code.
    """

    trusted_classes: list[str] = field(default_factory=list)
    resume_changed: bool = False
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require_trusted(self.trusted_classes)


class RemoteClients(Unassuming, ABC):
    """Connect to clients outside this process; the value of ``federation.pool``."""

    def removes(self) -> Iterator[Removal]:
        """Return what the server of a real federation lacks."""
        why = "the server of a real federation never has what its clients keep"
        yield Removal(Capability.NEAR_STATE, why, "remove 'federation.pool'")

    @abstractmethod
    def open(self, trainer: Trainer, settings: Any) -> tuple[ClientInfo, ...]:
        """Connect, and return what the clients tell about themselves, in the order of their ids.

        Args:
            trainer: the user's Trainer.
            settings: the federation's settings.

        Raises:
            ConfigurationError: if settings cannot work with remote clients, before anything is sent; or if clients are missing.
        """

    @abstractmethod
    def build_pool(self, assembly: Any, federation: Callable[[], str]) -> Any:
        """Return the pool of clients.

        Args:
            assembly: the parts of the federation at the server.
            federation: returns the federation's id, which checkpoints keep.
        """

    def review(self, round_idx: int, influence: Mapping[int, float]) -> None:
        """Refuse a round in which one client has too much influence, before the server uses its result.

        Args:
            round_idx: the round, from 0.
            influence: each client's share of the change of the model, by client; shares add up to 1.

        Raises:
            ClientError: naming the client.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection, however the fit ended."""
