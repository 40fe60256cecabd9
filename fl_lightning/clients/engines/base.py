"""Define the interface of engines, which train models on the clients' data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor

from fl_lightning.clients.resident import ResidentModel
from fl_lightning.core.hooks import ClientHooks
from fl_lightning.messages import ClientJob
from fl_lightning.rules.base import ClientRule
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.types import Snapshot


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Hold the settings that every engine needs.

    Attributes:
        local: the settings of the local training.
        precision: the precision, as accepted by Lightning's Trainer.
        device: the device to train on.
        rules: the rules that change the clients' training, in order.
        hooks: the clients' hooks of the options in use, in order, for their callbacks.
        deadline: the time limit of a client's training in seconds, checked between steps; None for no limit.
        fast_dev_run: whether each client trains on a single batch.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which a module may read some attributes; None at a site.
        detect_anomaly: like ``local.detect_anomaly``, but set by the outer Trainer.
        cohort: the largest number of clients in a round; None if it is unknown.
    """

    local: LocalTraining
    precision: str
    device: torch.device
    rules: Sequence[ClientRule] = ()
    hooks: Sequence[ClientHooks] = ()
    deadline: float | None = None
    fast_dev_run: bool = False
    logger: bool = False
    outer: Trainer | None = None
    detect_anomaly: bool = False
    cohort: int | None = None


@dataclass(frozen=True)
class EngineJob:
    """Hold one client's turn, with everything that an engine needs for it.

    Attributes:
        job: the turn.
        seed: the seed of the client's random numbers.
        open_data: a function that returns the client's examples, called once, when training begins.
        start: the model to start from; None for the global one.
        kept: the stored tensors of the client's rules, by name.
        own: the parameters and buffers that the client holds, by name; empty before its first training.
    """

    job: ClientJob
    seed: int
    open_data: Callable[[], LightningDataModule]
    start: Snapshot | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    own: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """Hold the result of one client's training.

    Attributes:
        job: the turn.
        model: the client's model.
        num_steps: the number of optimizer steps, without those that gradient scaling skipped.
        train_loss: the mean loss over its batches; None if ``training_step`` returns no loss.
        metrics: the metrics that the module logged.
        normalizer: FedNova's ||a_k||; None if the optimizer has no rule.
        rates: the sum of the learning rates over the steps; 0 if the optimizer has no rule.
        optimizer: the optimizer's name and momentum.
        seconds: the wall-clock time; clients that train side by side share it equally.
        kept: the state of the training that the client keeps until its next turn, packed; None if it keeps nothing.
        num_examples: the number of examples in its first epoch, if its data are a stream without a length; otherwise None.
        own: the parameters and buffers that the client holds, by name.
        kept_model: the model that the client keeps, if it is another one than ``model``.
        own_kept: as ``kept``, of the training of the client's own model after the turn.
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
    kept: Tensor | None = None
    num_examples: int | None = None
    own: Mapping[str, Tensor] = field(default_factory=dict)
    kept_model: Snapshot | None = None
    own_kept: Tensor | None = None


class Engine(Protocol):
    """Train clients on a resident module.

    Attributes:
        side_by_side: whether it trains several clients at once, and so benefits from many jobs per call.
        checks_between_steps: whether it can end a client's training early, at a deadline or after fewer steps.
        pulls: whether it can pull each client towards a model of its own.
        equals_trainer: whether its results on a CPU equal those of the engine ``trainer`` to the last bit.
    """

    side_by_side: ClassVar[bool]
    checks_between_steps: ClassVar[bool]
    pulls: ClassVar[bool]
    equals_trainer: ClassVar[bool]

    def __init__(self, resident: ResidentModel, settings: EngineSettings) -> None: ...

    def fit(self, jobs: Sequence[EngineJob]) -> Iterator[Trained]:
        """Train clients from the published model, or from the models of their jobs, and yield each one as soon as it is done.

        Between two results, the caller may load other models into the resident module. An error ends the iterator; jobs
        without a result may be passed again.

        Raises:
            EngineError: if another engine must train these clients.
        """
        ...

    def recover(self) -> None:
        """Clean up after a client's error."""
        ...
