"""Define the interface of engines, which train models on the clients' data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.messages import ClientTask
from fl_lightning.types import ClientUpdate, Snapshot


@dataclass(frozen=True)
class PreparedTask:
    """Hold a task with everything that an engine needs for it.

    Attributes:
        task: the task, with the model that it starts from; None for the global one.
        seed: the seed of the client's random numbers.
        open_data: a function that returns the client's examples, called once, when training begins.
        num_examples: the number of these examples, as far as it is known before the training.
        kept: the tensors that the client has stored for its rules, and those of its own model, by name.
        held: the parameters and buffers that the client holds, by name; empty before its first training.
        training: the packed state of its training; None before its first turn, or if nothing is kept.
    """

    task: ClientTask
    seed: int
    open_data: Callable[[], LightningDataModule]
    num_examples: int = 1
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)
    training: Tensor | None = None


@dataclass(frozen=True)
class LocalResult:
    """Hold the result of a local training: the update for the server, and what stays at the client.

    Attributes:
        prepared: the task.
        update: the update, with its model.
        rates: the sum of the learning rates over the steps; 0 if the optimizer has no rule.
        held: the parameters and buffers that the client holds, by name.
        kept: the tensors that the client stores for its rules until its next task, by name.
        training: the packed state of its training, if it keeps any.
        own_training: that of the training of the client's own model.
        own_model: the model that the client stores, if it is another one than it sends.
        streamed: the number of examples in the first epoch, if the data are a stream without a length; otherwise None.
    """

    prepared: PreparedTask
    update: ClientUpdate
    rates: float = 0.0
    held: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    training: Tensor | None = None
    own_training: Tensor | None = None
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

    def __init__(self, resident: ResidentModel, place: Place) -> None: ...

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
