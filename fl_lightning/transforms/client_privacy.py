"""Differential privacy of whole clients (McMahan et al. 2018, DP-FedAvg; Geyer et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.keyed_noise import KeyedStream
from fl_lightning.functional.privacy import epsilon_of_clients, require_package
from fl_lightning.functional.spending import Spending
from fl_lightning.transforms.base import Message, Sender
from fl_lightning.transforms.clip_update import ClipUpdate

_NAME = "federation.transforms."


class ClientPrivacy(ClipUpdate):
    """Clips every change to a norm and adds Gaussian noise, at the server once or at every client.

    ``central``: noise of standard deviation ``noise_multiplier * max_norm`` on the sum of the changes, so that over m clients
    the average has ``noise_multiplier * max_norm / m``; clients trust the server. It needs a plain average in which all
    clients weigh the same; a client that fails counts as one that changed nothing. ``local``: that noise on each client's
    change before it is sent, for any strategy: the model that the server sees is private already, and the average of m is
    sqrt(m) times as noisy as above.

    ``federation/epsilon_of_clients`` is what the run has given away so far, rounds that were repeated after a kill included;
    see :func:`~fl_lightning.functional.epsilon_of_clients`. Without trust in the server no client is hidden by being drawn or
    not: there it is that of the client that has sent most often.

    Args:
        max_norm: C, largest L2 norm of a client's change of all parameters, > 0, in the units of the weights.
        noise_multiplier: z > 0.
        noise: who adds it.
        delta: in (0, 1); below 1 / number of clients.
        noise_seed: None draws noise and cohorts from a secret key that is new at each start. With a number they follow from it
            and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no client.
    """

    def __init__(
        self,
        max_norm: float,
        noise_multiplier: float,
        noise: Literal["central", "local"] = "central",
        delta: float = 1e-5,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(max_norm)
        positive = 0 < noise_multiplier < math.inf
        require(positive, _NAME + "noise_multiplier", "above 0 and finite", noise_multiplier)
        require(noise in ("central", "local"), _NAME + "noise", "central or local", noise)
        require(0 < delta < 1, _NAME + "delta", "above 0 and below 1", delta)
        require_package("dp_accounting", "dp-accounting", "federation.transforms: ClientPrivacy")
        self.noise_multiplier = noise_multiplier
        self.noise = noise
        self.delta = delta
        self.noise_seed = noise_seed

    def apply(self, message: Message, sender: Sender) -> Message:
        """See :meth:`Transform.apply`; with noise of its own a message is dense, in float32 at least.

        A change that is not finite becomes 0: else it would tell that the client's training broke.
        """
        whole = bool(torch.isfinite(message.change).all())
        clipped = super().apply(message if whole else replace(message, change=torch.zeros_like(message.change)), sender)
        if self.noise == "central":
            return clipped
        noisy = self._noisy(clipped.change, 1, sender.secret)
        return replace(clipped, change=noisy, bits=max(32, clipped.bits), positions=None, overhead=0)

    def receive(self, change: Tensor, received: int, expected: int, draw: torch.Generator, secret: KeyedStream) -> Tensor:
        """See :meth:`Transform.receive`."""
        return change if self.noise == "local" else self._noisy(change * (received / expected), expected, secret)

    def epsilon(self, spending: Spending, population: int) -> float:
        """Return what a run has given away of a client.

        Args:
            spending: what the run has released.
            population: all clients of the federation.
        """
        if self.noise == "central":
            return epsilon_of_clients(self.noise_multiplier, spending.drawn, population, spending.sums, self.delta)
        return epsilon_of_clients(self.noise_multiplier, 1, 1, max(spending.sent.values(), default=0), self.delta)

    def _noisy(self, change: Tensor, count: int, secret: KeyedStream) -> Tensor:
        noise = secret.normals(change.numel()).to(change.device)
        return change + noise * (self.noise_multiplier * self.max_norm / count)
