"""Define the frozen messages between the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Hold a model's tensors at one moment.

    Attributes:
        vector: the parameters, then the floating-point buffers, shape (d,).
        counters: the integer and boolean buffers, int64, shape (c,).
        moved: the frozen tensors that differ from the global model's, by name: targets that follow the trained network.
        version: an object that identifies these tensors in this process, so that a module that contains them does not load them
            again.
    """

    vector: Tensor
    counters: Tensor
    moved: Mapping[str, Tensor] = field(default_factory=dict)
    version: object = field(default_factory=object, compare=False, repr=False)

    def to(self, device: torch.device | str) -> Snapshot:
        """Return a copy on a device, which no resident module contains."""
        moved = {name: tensor.to(device) for name, tensor in self.moved.items()}
        return Snapshot(self.vector.to(device), self.counters.to(device), moved)


@dataclass(frozen=True, slots=True)
class Compressed:
    """Hold a model as a compressed change of the global one, for the way to the server; see ``functional.compression``.

    Attributes:
        numbers: the new values of the parameters that are sent, or their changes, shape (s,); or their levels, packed in bytes.
        rest: the floating-point buffers, shape (d - p,).
        counters: the integer and boolean buffers, int64, shape (c,).
        positions: the positions of the parameters that are sent, int32 or int64, ascending, shape (s,); None for all.
        scales: the largest absolute change of each block, float32; None if the numbers are values, not levels.
        bits: the bits of a level.
        block: the number of levels that share a scale.
        changes: whether the numbers are changes, in a type of 16 bits.
    """

    numbers: Tensor
    rest: Tensor
    counters: Tensor
    positions: Tensor | None = None
    scales: Tensor | None = None
    bits: int = 0
    block: int = 0
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Pull:
    """Pull a client's parameters towards an anchor while it trains: ``strength / 2 * |w - anchor|^2`` in its loss.

    Attributes:
        anchor: the parameters of the anchor, shape (p,).
        strength: the strength of the pull, >= 0.
    """

    anchor: Tensor
    strength: float


@dataclass(frozen=True, slots=True)
class RoundStart:
    """Hold the information for a strategy at the start of a round.

    Attributes:
        round_idx: the communication round, from 0.
        cohort: the ids of the clients that take part, ascending.
        num_clients: the number K of all clients in the federation.
        server_state: the global weights w_t and averaged buffers as one vector, shape (d,).
        num_parameters: the number p of parameters: the first p entries of a state are parameters, the others buffers.
    """

    round_idx: int
    cohort: tuple[int, ...]
    num_clients: int
    server_state: Tensor
    num_parameters: int


@dataclass(frozen=True, slots=True)
class ClientFailure:
    """Describe a client that failed or dropped out of a round.

    Attributes:
        client: the client's id, from 0.
        round_idx: the communication round, from 0.
        cause: the cause, in one line.
        attempts: the number of attempts.
    """

    client: int
    round_idx: int
    cause: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """Hold the update that a client sends to the server after its local training.

    On a route that passes models from client to client, the update of a whole chain has the same form, with
    ``num_examples`` and ``num_steps`` summed over the chain.

    Attributes:
        client: the client's id, from 0; for a chain, the last client's.
        round_idx: the communication round, from 0.
        num_examples: the number n_k of the client's training examples.
        num_steps: the number tau_k of its optimizer steps in this round.
        train_loss: the mean of the losses that ``training_step`` returned over the round's batches; None if the module returns
            no loss (manual optimization).
        metrics: the metrics that the client's module logged with ``self.log`` during its training.
        seconds: the wall-clock time of the local training.
        bytes_down: the bytes sent to the client: parameters and buffers in their own dtype.
        bytes_up: the bytes sent by the client.
        score: the metric of the client's model on the server's set, if the strategy needs it.
        local_score: the metric of the client's model on its own validation part, if the strategy needs it.
        global_score: the metric of the global model w_t on the client's training part, if the strategy needs it.
        normalizer: FedNova's ||a_k||, the sum of the coefficients of the local gradients in the update; None if the client's
            optimizer has no known rule.
        optimizer: the client's optimizer in words, e.g. ``SGD with momentum 0.9``, ``Adam``.
        weight: the unnormalised weight p_k from the strategy; NaN without one.
        share: the weight divided by the sum over the cohort, in [0, 1].
        model: the client's model; None as soon as the strategy has read it.
        extras: additional tensors that the client's rule sends, by name, e.g. the change of SCAFFOLD's control variate.
        epsilon: the privacy spent so far on each of the client's examples, if its training is differentially private; known
            after all clients of the round have trained.
        update_norm: the L2 norm of the change of the parameters that the server receives; None if the server does not see
            individual changes.
        compressed: the model in the form in which a site sends it, instead of ``model``, if a transform compresses it.
        staleness: the number of new models since the client started, >= 0, in asynchronous rounds; otherwise None.
    """

    client: int
    round_idx: int
    num_examples: int
    num_steps: int
    train_loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    score: float | None = None
    local_score: float | None = None
    global_score: float | None = None
    normalizer: float | None = None
    optimizer: str = ""
    weight: float = math.nan
    share: float = math.nan
    model: Snapshot | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    epsilon: float | None = None
    update_norm: float | None = None
    compressed: Compressed | None = None
    staleness: int | None = None

    @property
    def state(self) -> Tensor | None:
        """Return parameters and floating-point buffers as one vector, shape (d,); None without a model."""
        return None if self.model is None else self.model.vector

    @property
    def counters(self) -> Tensor | None:
        """Return integer and boolean buffers as one int64 vector, shape (c,), while the update carries its model."""
        return None if self.model is None else self.model.counters

    @property
    def snapshot(self) -> Snapshot:
        """Return the client's model, which the update must still carry."""
        assert self.model is not None
        return self.model

    def without_state(self) -> ClientUpdate:
        """Return the update without its tensors, which makes it small and safe to store or to send between ranks."""
        return replace(self, model=None, extras={}, compressed=None)

    def with_state(self, state: Tensor) -> ClientUpdate:
        """Return the update with another state, shape (d,)."""
        return replace(self, model=Snapshot(state, self.snapshot.counters, self.snapshot.moved), compressed=None)

    def to(self, device: torch.device | str) -> ClientUpdate:
        """Return the update with its tensors on a device; no resident module contains this copy."""
        model = None if self.model is None else self.model.to(device)
        return replace(self, model=model, extras={name: tensor.to(device) for name, tensor in self.extras.items()})

    def after(self, earlier: ClientUpdate) -> ClientUpdate:
        """Merge this update with one from an earlier period of the same round and client, and keep this one's model."""
        losses = [(u.train_loss, u.num_steps) for u in (earlier, self) if u.train_loss is not None]
        steps = sum(n for _, n in losses)
        return replace(
            self,
            num_steps=self.num_steps + earlier.num_steps,
            train_loss=sum(loss * n for loss, n in losses) / steps if steps else None,
            seconds=self.seconds + earlier.seconds,
            bytes_down=self.bytes_down + earlier.bytes_down,
            bytes_up=self.bytes_up + earlier.bytes_up,
            normalizer=None,
        )


@dataclass(frozen=True)
class RoundResult:
    """Hold the result of a round, the same on every rank.

    Attributes:
        aggregate: the new state, float64, shape (d,).
        counters: the new counters.
        updates: the updates that the server used, without their models, in the order of clients.
        failures: the failures, in the order of clients.
        moved: the new values of frozen tensors that clients changed, by name.
        lost: the clients that dropped out.
    """

    aggregate: Tensor
    counters: Tensor
    updates: list[ClientUpdate]
    failures: list[ClientFailure]
    moved: Mapping[str, Tensor] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
