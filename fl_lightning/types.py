"""The frozen messages that pass between the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """What one client sends to the server at the end of its local training.

    Attributes:
        client: the client's id, from 0.
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
        weight: the unnormalised weight p_k that the strategy gave it.
        share: the weight divided by the sum over the cohort, in [0, 1].
        state: the client's parameters and floating-point buffers as one vector, shape (d,); dropped (None) as soon
            as the strategy has taken it in.
        counters: its integer and boolean buffers as one int64 vector, shape (c,).
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
    weight: float = math.nan
    share: float = math.nan
    state: Tensor | None = None
    counters: Tensor | None = None

    def without_state(self) -> ClientUpdate:
        """The same update without its tensors: small, and safe to keep or to send between ranks."""
        return replace(self, state=None, counters=None)
