"""Protect whole clients by differential privacy (McMahan et al. 2018, DP-FedAvg; Geyer et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.keyed_noise import KeyedStream
from fl_lightning.functional.privacy import epsilon_of_clients, require_package
from fl_lightning.functional.releases import Release
from fl_lightning.functional.spending import Entry, Spending
from fl_lightning.messages import ClientTask
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.transforms.base import Message, Sender
from fl_lightning.transforms.clip_update import ClipUpdate

if TYPE_CHECKING:
    from fl_lightning.clients.client_data import ClientData
    from fl_lightning.core.hooks import ServerContext
    from fl_lightning.server.federation import Federation
    from fl_lightning.server.sampling import RoundPlan
    from fl_lightning.settings.federation import FederationSettings
    from fl_lightning.settings.local_training import LocalTraining

_NAME = "federation.transforms."


class ClientPrivacy(ClipUpdate, PrivateOption):
    """Clip every change to a norm and add Gaussian noise, once at the server or at every client.

    ``central`` adds noise of standard deviation ``noise_multiplier * max_norm`` to the sum of the changes, so the average over
    m clients has ``noise_multiplier * max_norm / m``. Clients must trust the server. It requires a plain average in which all
    clients weigh the same; a client that fails counts as one without a change. ``local`` adds that noise to each client's
    change before it is sent, and works with any strategy. The model that the server sees is then already private, and the
    average of m is sqrt(m) times as noisy as with ``central``.

    ``federation/epsilon_of_clients`` is the privacy loss of the run so far, including rounds that were repeated after a kill;
    see :func:`~fl_lightning.functional.privacy.epsilon_of_clients`. With ``local``, the server knows which clients were drawn,
    so it is the epsilon of the client that has sent most often.

    Args:
        max_norm: the largest L2 norm C of a client's change of all parameters, > 0, in the units of the weights.
        noise_multiplier: the noise multiplier z > 0; None with ``target_epsilon``.
        noise: where the noise is added, ``central`` or ``local``.
        delta: delta, in (0, 1); choose it below 1 / number of clients.
        noise_seed: None draws noise and cohorts from a secret key that is new at each start. With a number, they derive from it
            and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no client.
        target_epsilon: the largest epsilon of the whole run, > 0, instead of a noise multiplier: at the start, the least noise
            is solved for the planned rounds, with ``local`` for a client that is drawn in all of them.

    Raises:
        ConfigurationError: if a value is outside its range, or dp-accounting is not installed.
    """

    setting = "transforms"
    unit = "clients"
    no_rebalancing = (
        "lets each client's label counts influence the training of other clients, which ClientPrivacy does not cover"
    )
    secret_cohorts = True
    on_resume = ResumeRule(stays="*")

    def __init__(
        self,
        max_norm: float,
        noise_multiplier: float | None = None,
        noise: Literal["central", "local"] = "central",
        delta: float = 1e-5,
        noise_seed: int | None = None,
        target_epsilon: float | None = None,
    ) -> None:
        super().__init__(max_norm)
        require(noise in ("central", "local"), _NAME + "noise", "central or local", noise)
        require_package("dp_accounting", "dp-accounting", "federation.transforms: ClientPrivacy")
        self.noise_multiplier = noise_multiplier
        self.noise = noise
        self.delta = delta
        self.noise_seed = noise_seed
        self.target_epsilon = target_epsilon
        self._check_noise("federation.transforms")

    def needs(self) -> Iterator[Need]:
        """Return what the noise needs: at the server, that any client may be in any cohort, as the accountant assumes."""
        yield from super().needs()
        yield from PrivateOption.needs(self)
        if self.noise == "central":
            what = "ClientPrivacy with noise at the server needs cohorts that are drawn from all clients"
            yield Need(Capability.FULL_DRAWS, what, "Set its 'noise' to local")

    def removes(self) -> Iterator[Removal]:
        """Return what the noise takes away: other parts must not read a change before it is protected."""
        yield Removal(Capability.OPEN_CHANGES, "ClientPrivacy protects them only then", "remove ClientPrivacy")
        yield Removal(Capability.OPEN_HOLDINGS, "ClientPrivacy does not cover what clients keep", "remove ClientPrivacy")

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the clipped message; see :meth:`Transform.apply`. With local noise it is dense, in float32 at least.

        A non-finite change becomes 0; otherwise it would reveal that the client's training broke.
        """
        whole = bool(torch.isfinite(message.change).all())
        clipped = super().apply(message if whole else replace(message, change=torch.zeros_like(message.change)), sender)
        if self.noise == "central":
            return clipped
        noisy = self._noisy(clipped.change, 1, sender.secret)
        return replace(clipped, change=noisy, bits=max(32, clipped.bits), positions=None, overhead=0)

    def receive(self, change: Tensor, received: int, expected: int, draw: torch.Generator, secret: KeyedStream) -> Tensor:
        """Add central noise to the average; see :meth:`Transform.receive`."""
        return change if self.noise == "local" else self._noisy(change * (received / expected), expected, secret)

    @property
    def receives(self) -> bool:
        """Return whether the server adds the noise."""
        return self.noise == "central"

    @property
    def title(self) -> str:
        """Return the name of the option in messages."""
        return "ClientPrivacy"

    def check_settings(self, settings: FederationSettings) -> None:
        """Refuse settings by which messages tell more of a client than its clipped and noisy change."""
        from fl_lightning.options.client_privacy.checks import check_settings

        check_settings(self, settings)

    def check_module(self, precision: str, module: LightningModule) -> None:
        """Refuse a precision with which clipping is not exact."""
        known = "one of at least 32 bits with ClientPrivacy, because rounding could increase the norm of changes"
        require(precision not in ("16-true", "bf16-true"), "federation.local.precision", known, precision)

    def clients_noise(self, delivered: bool) -> float:
        """Return the noise multiplier, if clients add the noise themselves."""
        return self.multiplier if delivered and self.noise == "local" else 0.0

    def released(self, task: ClientTask, data: ClientData, local: LocalTraining, attempts: int) -> Release | None:
        """Return the noisy message of a task whose model goes to the server, if clients add the noise themselves."""
        return Release("clients", self.multiplier) if task.delivers and self.noise == "local" else None

    @property
    def guarantee(self) -> str:
        """Return what all rounds of a run must share for one epsilon to cover them."""
        noise = self.noise_multiplier if self.target_epsilon is None else f"target_epsilon={self.target_epsilon}"
        return f"ClientPrivacy({self.max_norm}, {noise}, {self.noise}, {self.delta}, noise_seed={self.noise_seed})"

    def planned(self, federation: Federation, plan: RoundPlan, tasks: Sequence[ClientTask]) -> Entry:
        """Return the size of the cohort whose sum gets noise, or the messages that do."""
        return {"drawn": plan.drawn} if self.noise == "central" else {"sent": {task.client: 1 for task in tasks}}

    def whole_run(self, context: ServerContext, rounds: int) -> Spending:
        """Return sums over cohorts, or messages of clients that are drawn in every round."""
        spending = Spending()
        if self.noise == "central":
            spending.sums, spending.drawn = rounds, context.cohort
        else:
            spending.sent = dict.fromkeys(range(context.data.num_clients), rounds)
        return spending

    def cases(self, spending: Spending, population: int) -> list[tuple[float, ...]]:
        """Return the size of the largest cohort, the number of clients, and the rounds; with local noise, of one client."""
        if self.noise == "central":
            return [(spending.drawn, population, spending.sums)]
        return [(1, 1, max(spending.sent.values(), default=0))]

    def epsilon(self, multiplier: float, case: tuple[float, ...]) -> float:
        """Return epsilon of a client."""
        sampled, population, rounds = map(int, case)
        return epsilon_of_clients(multiplier, sampled, population, rounds, self.delta)

    def _noisy(self, change: Tensor, count: int, secret: KeyedStream) -> Tensor:
        noise = secret.normals(change.numel()).to(change.device)
        return change + noise * (self.multiplier * self.max_norm / count)
