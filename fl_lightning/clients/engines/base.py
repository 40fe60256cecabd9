"""Define engines: what trains clients, from a model and their data to new models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.messages import ClientJob
from fl_lightning.rules.base import ClientRule
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.types import Snapshot


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Hold what every engine is told when it is built.

    Attributes:
        local: the settings of the local training.
        precision: as Lightning's Trainer takes it.
        device: where the clients train.
        rules: what clients add to their training, in this order.
        private: makes steps private, or None.
        deadline: seconds that a client's training may take, checked between steps; None for any.
        fast_dev_run: let each client train on one batch only.
        logger: whether the module finds a (silent) logger.
        detect_anomaly: as ``local.detect_anomaly``, but set by the outer Trainer.
        cohort: the largest number of clients in a round; None if it is unknown.
    """

    local: LocalTraining
    precision: str
    device: torch.device
    rules: Sequence[ClientRule] = ()
    private: PrivateSteps | None = None
    deadline: float | None = None
    fast_dev_run: bool = False
    logger: bool = False
    detect_anomaly: bool = False
    cohort: int | None = None


@dataclass(frozen=True)
class EngineJob:
    """One client's turn, with everything that an engine needs for it.

    Attributes:
        job: the turn.
        seed: of the client's random numbers.
        open_data: returns the client's examples; called once, when the training begins.
        start: the model to start from, if it is not the global one.
        kept: what the client's rules have kept, by name.
    """

    job: ClientJob
    seed: int
    open_data: Callable[[], LightningDataModule]
    start: Snapshot | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """Hold the result of one client's training.

    Attributes:
        job: the turn.
        model: the client's model.
        num_steps: its optimizer steps, without those that gradient scaling skipped.
        train_loss: the mean over its batches; None if ``training_step`` returns none.
        metrics: what its module logged.
        normalizer: FedNova's ||a_k||; None if the optimizer has no rule.
        rates: the sum of the steps' learning rates; 0 if the optimizer has no rule.
        optimizer: the optimizer's name and momentum.
        seconds: the wall-clock time; side by side, the clients' equal shares of it.
    """

    job: EngineJob
    model: Snapshot
    num_steps: int
    train_loss: float | None
    metrics: Mapping[str, float]
    normalizer: float | None
    rates: float
    optimizer: str
    seconds: float


class Engine(Protocol):
    """Train clients on a resident module.

    Attributes:
        side_by_side: whether it trains several clients at once, so that it should get many jobs in one call.
        checks_between_steps: whether it can end a client's training early: at a deadline, or after fewer steps.
        pulls: whether each client may be pulled towards a model of its own.
        equals_trainer: whether it gives the bits of the engine ``trainer`` on a CPU.
    """

    side_by_side: ClassVar[bool]
    checks_between_steps: ClassVar[bool]
    pulls: ClassVar[bool]
    equals_trainer: ClassVar[bool]

    def __init__(self, resident: ResidentModel, settings: EngineSettings) -> None: ...

    def fit(self, jobs: Sequence[EngineJob]) -> Iterator[Trained]:
        """Train clients from the published model, or from where their jobs start, and yield each as soon as it is done.

        Between two results the caller may load other models into the resident module. An error ends the iterator; jobs
        without a result may be given again.

        Raises:
            EngineError: if another engine must train these clients.
        """
        ...

    def recover(self) -> None:
        """Drop what a client's error may have left behind."""
        ...
