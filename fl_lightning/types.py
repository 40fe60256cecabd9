"""The frozen messages that pass between the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's tensors at one moment.

    Attributes:
        vector: parameters, then floating-point buffers, shape (d,).
        counters: integer and boolean buffers, int64, shape (c,).
        version: an object that stands for these tensors in this process: a module that holds them need not load them.
    """

    vector: Tensor
    counters: Tensor
    version: object = field(default_factory=object, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pull:
    """Pull a client's parameters towards an anchor while it trains: ``strength / 2 * |w - anchor|^2`` in its loss.

    Attributes:
        anchor: where to, shape (p,).
        strength: >= 0.
    """

    anchor: Tensor
    strength: float


@dataclass(frozen=True, slots=True)
class RoundStart:
    """Hold what a strategy knows when a round begins.

    Attributes:
        round_idx: the communication round, from 0.
        cohort: ids of the clients that take part, ascending.
        num_clients: K, all clients of the federation.
        server_state: the global weights w_t and averaged buffers as one vector, shape (d,).
        num_parameters: the first p entries of a state are parameters, the others buffers.
    """

    round_idx: int
    cohort: tuple[int, ...]
    num_clients: int
    server_state: Tensor
    num_parameters: int


@dataclass(frozen=True, slots=True)
class ClientFailure:
    """A client that a round had to do without.

    Attributes:
        client: its id, from 0.
        round_idx: the communication round, from 0.
        cause: in a line.
        attempts: how often it tried.
    """

    client: int
    round_idx: int
    cause: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """Hold what one client sends to the server at the end of its local training.

    On a route that passes models from client to client, what a whole chain of clients hands over looks the same: its
    ``num_examples`` and ``num_steps`` are sums over the chain.

    Attributes:
        client: the client's id, from 0; the last one's of a chain.
        round_idx: the communication round, from 0.
        num_examples: training examples the client holds (n_k).
        num_steps: optimizer steps it took this round (tau_k).
        train_loss: mean of the losses that ``training_step`` returned over the round's batches; None where the
            module returns none (manual optimization).
        metrics: what the client's module logged with ``self.log`` during its training.
        seconds: wall-clock time of the local training.
        bytes_down: bytes sent to the client: parameters and buffers in their own dtype.
        bytes_up: bytes sent by the client.
        score: the metric of the client's model on the server's set, if the strategy asked for one.
        local_score: the metric of the client's model on its own validation part, likewise.
        global_score: the metric of the global model w_t on the client's training part, likewise.
        normalizer: FedNova's ||a_k||, the sum of the coefficients with which the local gradients enter the update; None
            where no rule is known for the client's optimizer.
        optimizer: the client's optimizer in words, e.g. ``SGD``, ``Adam``.
        weight: the unnormalised weight p_k that the strategy gave it; NaN where it gave none.
        share: the weight divided by the sum over the cohort, in [0, 1].
        model: the client's model; dropped (None) as soon as the strategy has read it.
        extras: further tensors that the client's rule sends, by name, e.g. the change of SCAFFOLD's control variate.
        epsilon: what the client has given away of an example so far, where its training is differentially private; known
            when all clients of the round have trained.
        update_norm: the L2 norm of the change of the parameters that the server gets; None where it sees no single changes.
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

    @property
    def state(self) -> Tensor | None:
        """Return parameters and floating-point buffers as one vector, shape (d,), while the update carries its model."""
        return None if self.model is None else self.model.vector

    @property
    def snapshot(self) -> Snapshot:
        """Return the client's model, while the update carries it."""
        assert self.model is not None
        return self.model

    def without_state(self) -> ClientUpdate:
        """Return the same update without its tensors: small, and safe to keep or to send between ranks."""
        return replace(self, model=None, extras={})

    def with_state(self, state: Tensor) -> ClientUpdate:
        """Return the same update with another state, shape (d,)."""
        return replace(self, model=Snapshot(state, self.snapshot.counters))

    def to(self, device: torch.device | str) -> ClientUpdate:
        """Return the same update with its tensors on a device; no resident module holds this copy."""
        model = None if self.model is None else Snapshot(self.model.vector.to(device), self.model.counters.to(device))
        return replace(self, model=model, extras={name: tensor.to(device) for name, tensor in self.extras.items()})

    def after(self, earlier: ClientUpdate) -> ClientUpdate:
        """This period of a round and an earlier one of the same client, as one update: the model is this one's."""
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
