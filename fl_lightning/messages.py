"""Define the frozen messages between server and clients: plain values and tensors that :mod:`fl_lightning.wire` encodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fl_lightning.types import Pull, Snapshot

Part = Literal["training", "validation", "test"]
MetricRole = str
"""``start`` or ``sent``: the strategy's metric of the model that a client receives or sends; ``route``: the route's metric; or
the role of an option's metric."""


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Describe which parts of a module are trained, so that every copy arranges its tensors in the same way.

    Attributes:
        trained: whether each parameter is trained, in the module's order.
        modes: whether each submodule is in training mode and, for BatchNorm, tracks its statistics (None for other modules),
            by name.
        moving: the names of frozen tensors that clients' training has changed, in order.
        held: the names of the tensors that clients hold: of which each client keeps its own, in order.
        unsent: the names of the buffers that are not sent back because they were complex or not finite at the start.
    """

    trained: tuple[bool, ...]
    modes: Mapping[str, tuple[bool, bool | None]]
    moving: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerModel:
    """Hold the global model of a round, as the server publishes it.

    Attributes:
        version: the number of the published model, which increases by one each time.
        round_idx: the communication round, from 0.
        tensors: the parameters and buffers by name; in this process these are the server's own, which do not change before the
            next version.
        layout: the layout of the module, which says what is trained.
        broadcast: additional tensors for the clients' rules, by name; see :meth:`Strategy.broadcast`.
        max_abs_weight: the largest weight that can be summed exactly; updates with a larger one are refused.
        tolerates_broken: whether the strategy accepts weights that are not finite.
        first: the held tensors of the first model, by name, with which a client begins that has none of its own.
        session: the id of this start of the server; when it changes, remote clients go back to the round that begins.
        base: an earlier version, with which the tensors that are missing here are shared; 0 if none is missing.
    """

    version: int
    round_idx: int
    tensors: Mapping[str, Tensor]
    layout: ModelLayout
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    max_abs_weight: float = math.inf
    tolerates_broken: bool = False
    session: str = ""
    base: int = 0
    first: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """Place a task of a client in the whole training, as if the client had taken part in every round.

    Attributes:
        turn: the number of turns before this one, >= 0.
        turns: the number of turns in the whole training; None if it is unlimited.
    """

    turn: int
    turns: int | None = None


@dataclass(frozen=True, slots=True)
class ClientTask:
    """Ask for one local training of one client, which answers with a ``ClientUpdate`` or a ``ClientFailure``.

    Attributes:
        client: the client's id, from 0.
        round_idx: the communication round, from 0.
        period: the number of times that the client has trained in this round before, each with different random numbers.
        epochs: the number of local epochs, if it is smaller than in the settings; otherwise None.
        slowness: the factor by which the client is slower: it does 1 / slowness of its steps.
        pull: the model that attracts its parameters, instead of a proximal term.
        own_model: whether the client starts from the model that it trained last, if any, and stores the new one.
        progress: the place of the task in the whole training; None for a training of its own.
        start: the model that the client starts from; None for the global one.
        delivers: whether its model goes to the server, so that attacks, transforms and the score of sent models apply.
        version: the version of the global model.
    """

    client: int
    round_idx: int
    period: int = 0
    epochs: int | None = None
    slowness: float = 1.0
    pull: Pull | None = None
    own_model: bool = False
    progress: Progress | None = None
    start: Snapshot | None = None
    delivers: bool = True
    version: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Ask for a metric that no setting names, with an interval.

    Attributes:
        metric: the metric as values, ``{"class_path": ..., "init_args": {...}}``.
        resamples: the number of bootstrap resamples behind the interval, >= 0; 0 for no interval.
        level: the share of the resamples' values within the interval, in (0, 1).
    """

    metric: Mapping[str, Any]
    resamples: int = 1000
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class EvalOrder:
    """Order the evaluation of a model on a part of one client's examples.

    Attributes:
        version: of the global model.
        client: the client's id, from 0.
        part: the part of the client's examples.
        metric: the role of the metric, which both sides know from their settings; see :class:`Client`.
        model: the model to evaluate; None for the global one.
        own: whether to evaluate the client's own last model instead, if it has one.
        tasks: the trainings that the client first does alone, one after another, starting from the model.
        epochs: the number of local epochs of each of them; None for the number in the settings.
        question: the metric to compute instead of the role's; None for the role's.
    """

    version: int
    client: int
    part: Part
    metric: MetricRole
    model: Snapshot | None = None
    own: bool = False
    tasks: tuple[ClientTask, ...] = ()
    epochs: int | None = None
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class EvalReport:
    """Hold a client's result of an :class:`EvalOrder`.

    Attributes:
        client: the client's id, from 0.
        value: the value of the metric; NaN if there is none, or if it is a curve.

    The answer to a :class:`Question` also has:

    Attributes:
        n: the number of persons behind the value, or of examples if the data name no persons.
        interval: the bounds of the bootstrap interval; None without one.
        points: the tensors that the metric returns, float64, if it is a curve, with NaN for points that are not told.
        sums: the states of the metric by name, float64, if they add up over clients, with NaN for entries that are not told.
        reason: why the value or the interval is missing; empty if neither is.
        pooled: why there are no sums; empty if there are.
    """

    client: int
    value: float
    n: int = 0
    interval: tuple[float, float] | None = None
    points: tuple[Tensor, ...] = ()
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    reason: str = ""
    pooled: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Carry a message between an option's hooks at the server and those where a client trains, in either direction.

    Attributes:
        option: the name of the option among the federation's settings.
        client: the client's id, from 0.
        content: the message, as plain values.
    """

    option: str
    client: int
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoundCommit:
    """Announce the end of a round to remote clients.

    Attributes:
        round_idx: the round that ends, from 0.
        accepted: the clients whose updates the server used.
        saved_round: the last round in a checkpoint, or -1. Earlier rounds will not be repeated.
    """

    round_idx: int
    accepted: tuple[int, ...]
    saved_round: int = -1


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Describe a client to the server before the first round.

    Attributes:
        name: the client's name in tables and messages.
        num_examples: the number of its training examples; 1 if it is unknown.
        label_counts: the number of its examples of each class; None if it does not report them.
        num_validation: the number of examples in its own validation part, if it is remote.
        num_test: the number of examples in its own test part, if it is remote.
        streams: whether it reads a stream without a length, so that each update tells how many examples it trained on.
        digests: digests of the names of its classes and features in their order, if the server has none; otherwise empty.
        moments: of the inputs' channels the counts, sums and sums of squares, as
            :class:`~fl_lightning.functional.exact_moments.Moments` writes them; empty if it adds them to those of other sites
            only, as the server has asked; None if the server did not ask, or the site tells none.
        schema: the digest of the schema that describes its tables; empty without one.
        sampling: the number of batches of an epoch, and the probability, at least, that an example is in one of them if each is
            drawn for itself; None for a stream, or a loader that draws its own batches.
    """

    name: str
    num_examples: int
    label_counts: tuple[int, ...] | None = None
    num_validation: int = 0
    num_test: int = 0
    streams: bool = False
    digests: tuple[str, str] = ("", "")
    moments: tuple[tuple[str, ...], ...] | None = None
    schema: str = ""
    sampling: tuple[int, float] | None = None
