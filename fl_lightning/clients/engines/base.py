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
from fl_lightning.messages import ClientTask
from fl_lightning.rules.base import ClientRule
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.types import ClientUpdate, Snapshot


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
class PreparedTask:
    """Hold a task with everything that an engine needs for it.

    Attributes:
        task: the task, with the model that it starts from; None for the global one.
        seed: the seed of the client's random numbers.
        open_data: a function that returns the client's examples, called once, when training begins.
        num_examples: the number of these examples, as far as it is known before the training.
        kept: the tensors that the client has stored, by name.
        held: the parameters and buffers that the client holds, by name; empty before its first training.
    """

    task: ClientTask
    seed: int
    open_data: Callable[[], LightningDataModule]
    num_examples: int = 1
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalResult:
    """Hold the result of a local training: the update for the server, and what stays at the client.

    Attributes:
        prepared: the task.
        update: the update, with its model.
        rates: the sum of the learning rates over the steps; 0 if the optimizer has no rule.
        held: the parameters and buffers that the client holds, by name.
        kept: the tensors that the client stores until its next task, by name: the state of its training and of its rules.
        own_model: the model that the client stores, if it is another one than it sends.
        streamed: the number of examples in the first epoch, if the data are a stream without a length; otherwise None.
    """

    prepared: PreparedTask
    update: ClientUpdate
    rates: float = 0.0
    held: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    own_model: Snapshot | None = None
    streamed: int | None = None


class Engine(Protocol):
    """Train clients on a resident module.

    Attributes:
        side_by_side: whether it trains several clients at once, and so benefits from many tasks per call.
        checks_between_steps: whether it can end a client's training early, at a deadline or after fewer steps.
        pulls: whether it can pull each client towards a model of its own.
        equals_trainer: whether its results on a CPU equal those of the engine ``trainer`` to the last bit.
    """

    side_by_side: ClassVar[bool]
    checks_between_steps: ClassVar[bool]
    pulls: ClassVar[bool]
    equals_trainer: ClassVar[bool]

    def __init__(self, resident: ResidentModel, settings: EngineSettings) -> None: ...

    def fit(self, tasks: Sequence[PreparedTask]) -> Iterator[LocalResult]:
        """Train clients from the published model, or from the models of their tasks, and yield each result at once.

        Between two results, the caller may load other models into the resident module. An error ends the iterator; tasks
        without a result may be passed again.

        Raises:
            EngineError: if another engine must train these clients.
        """
        ...

    def recover(self) -> None:
        """Clean up after a client's error."""
        ...
