"""The frozen messages between the server and the clients: plain values and tensors, which :mod:`fl_lightning.wire` encodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fl_lightning.types import ClientFailure, ClientUpdate, Pull, Snapshot

Part = Literal["training", "validation", "test"]
MetricRole = Literal["start", "sent", "route", "evaluation"]
"""The strategy's metric of the model that a client gets, and of the one that it sends; the route's; the evaluation's."""


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Which parts of a module are trained, so that every copy arranges its tensors alike.

    Attributes:
        trained: for each parameter, in the module's order, whether it is trained.
        modes: for each submodule, by its name, whether it is in training mode and, for BatchNorm, whether it tracks its
            statistics (None for other modules).
    """

    trained: tuple[bool, ...]
    modes: Mapping[str, tuple[bool, bool | None]]


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The global model of a round, as the server publishes it.

    Attributes:
        version: rises by one with every model that is published.
        round_idx: the communication round, from 0.
        tensors: parameters and buffers by name; in this process the server's own, which do not change before the next
            version.
        layout: which of them are trained.
        broadcast: further tensors for the clients' rules, by name; see :meth:`Strategy.broadcast`.
        largest: an update with a larger weight cannot be summed exactly and is refused.
        tolerates_broken: whether the strategy copes with weights that are not finite.
        session: differs for every start of the server; clients elsewhere then go back to the round that begins.
    """

    version: int
    round_idx: int
    tensors: Mapping[str, Tensor]
    layout: ModelLayout
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    largest: float = math.inf
    tolerates_broken: bool = False
    session: str = ""


@dataclass(frozen=True, slots=True)
class ClientJob:
    """One client's turn to train.

    Attributes:
        client: its id, from 0.
        round_idx: the communication round, from 0.
        period: how often the client has trained in this round before; its random numbers differ.
        epochs: fewer local epochs than the settings say; None for theirs.
        slowness: the client does 1 / slowness of its steps.
        pull: the model that attracts its parameters, in place of a proximal term.
        own_model: the client starts from the model that it trained last, if it has one, and keeps the new one.
    """

    client: int
    round_idx: int
    period: int = 0
    epochs: int | None = None
    slowness: float = 1.0
    pull: Pull | None = None
    own_model: bool = False


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """An order to train a chain of clients, each from the model of the one before it.

    Attributes:
        version: of the global model.
        jobs: the turns, in their order.
        start: the model that the first client starts from, if it is not the global one.
        delivers: whether the last model goes to the server, so that attacks, transforms and the score of what is sent apply.
        scored: examples on which the server will measure the chain's model; ranks balance their work by it.
    """

    version: int
    jobs: tuple[ClientJob, ...]
    start: Snapshot | None = None
    delivers: bool = True
    scored: int = 0


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What became of a chain of clients.

    Attributes:
        updates: of the clients that trained, in their order; the last one carries the model that reaches the server.
        failures: of the other clients, each with its own cause.
    """

    updates: tuple[ClientUpdate, ...] = ()
    failures: tuple[ClientFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class EvalOrder:
    """An order to measure a model on a part of one client's examples.

    Attributes:
        version: of the global model.
        client: its id, from 0.
        part: of its examples.
        metric: which of the metrics that both sides know from their settings; see :class:`ClientEvaluators`.
        model: the model to measure, if it is not the global one.
        own: measure the client's own last model, if it keeps one, instead.
        jobs: train these turns first, by the client alone, from the model on.
        epochs: local epochs of these turns, if they are not the settings' number.
    """

    version: int
    client: int
    part: Part
    metric: MetricRole
    model: Snapshot | None = None
    own: bool = False
    jobs: tuple[ClientJob, ...] = ()
    epochs: int | None = None


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The result of an :class:`EvalOrder`.

    Attributes:
        client: its id, from 0.
        value: of the metric.
    """

    client: int
    value: float


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a round for clients elsewhere.

    Attributes:
        round_idx: the round that ends, from 0.
        accepted: the clients whose updates the server has used.
        saved_round: the last round that a checkpoint holds; -1 for none. No earlier one will be repeated.
    """

    round_idx: int
    accepted: tuple[int, ...]
    saved_round: int = -1


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What a client tells of itself before the first round.

    Attributes:
        name: for tables and messages.
        num_examples: its training examples.
        label_counts: how many of them are of each class; None if it does not tell.
    """

    name: str
    num_examples: int
    label_counts: tuple[int, ...] | None = None
