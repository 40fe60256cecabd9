"""Protect whole clients by differential privacy (McMahan et al. 2018, DP-FedAvg; Geyer et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fl_lightning.core.capabilities import Capability, Need, Removal, ResumeRule
from fl_lightning.core.option import ServerHooks
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.keyed_noise import KeyedStream
from fl_lightning.functional.privacy import require_package
from fl_lightning.functional.releases import Case, Release
from fl_lightning.functional.spending import Entry, Spending
from fl_lightning.messages import ClientTask
from fl_lightning.options.privacy_account.checks import DECLARE, ELSEWHERE, check_declared, check_own_metrics, declares
from fl_lightning.options.privacy_account.server import account_of
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.routes.server import ServerRoute
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.transforms.base import Message, Sender, Transform
from fl_lightning.transforms.clip_update import ClipUpdate

if TYPE_CHECKING:
    from fl_lightning.core.federation import Federation, FederationSettings, LocalSettings, ServerContext
    from fl_lightning.core.option import ClientData
    from fl_lightning.core.plan import RoundPlan
    from fl_lightning.data.federated import FederatedDataModule

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

    With ``target_quantile``, the norm follows that quantile of the clients' norms (Andrew et al. 2021): after each round, it is
    multiplied by ``exp(-norm_rate * (b - target_quantile))``, where b is the share of changes that were left whole, with noise.
    The count has its share of the same epsilon, so the noise on the changes is larger than without.

    Args:
        max_norm: the largest L2 norm C of a client's change of all parameters, > 0, in the units of the weights; with
            ``target_quantile``, that of the first round.
        noise_multiplier: the noise multiplier z > 0; None with ``target_epsilon``.
        noise: where the noise is added, ``central`` or ``local``.
        delta: delta, in (0, 1); choose it below 1 / number of clients.
        noise_seed: None draws noise and cohorts from a secret key that is new at each start. With a number, they derive from it
            and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no client.
        target_epsilon: the largest epsilon of the whole run, > 0, instead of a noise multiplier: at the start, the least noise
            is solved for the planned rounds, with ``local`` for a client that is drawn in all of them.
        extend: whether a resumed run may have more rounds than planned. The noise of those that remain is then solved again,
            and is larger, so that the whole run stays within the target.
        target_quantile: the share in (0, 1) of the clients whose changes should not be clipped, with ``central`` noise; None
            for a fixed norm.
        norm_rate: the step of the norm's logarithm, > 0.
        count_noise: the standard deviation of the noise on the count, above half of the noise multiplier; by default a 20th of
            the round's clients, as in the paper, and at least the noise multiplier.

    Raises:
        ConfigurationError: if a value is outside its range, or dp-accounting is not installed.
    """

    setting = "transforms"
    unit = "clients"
    no_rebalancing = (
        "lets each client's label counts influence the training of other clients, which ClientPrivacy does not cover"
    )
    secret_cohorts = True
    on_resume = ResumeRule(stays="*", free="extend")

    def __init__(
        self,
        max_norm: float,
        noise_multiplier: float | None = None,
        noise: Literal["central", "local"] = "central",
        delta: float = 1e-5,
        noise_seed: int | None = None,
        target_epsilon: float | None = None,
        target_quantile: float | None = None,
        norm_rate: float = 0.2,
        count_noise: float | None = None,
        extend: bool = False,
    ) -> None:
        super().__init__(max_norm)
        require(noise in ("central", "local"), _NAME + "noise", "central or local", noise)
        require_package("dp_accounting", "dp-accounting", "federation.transforms: ClientPrivacy")
        self.noise_multiplier, self.noise, self.delta, self.noise_seed = noise_multiplier, noise, delta, noise_seed
        self.target_epsilon, self.extend = target_epsilon, extend
        self.target_quantile, self.norm_rate, self.count_noise = target_quantile, norm_rate, count_noise
        self._check_noise("federation.transforms")
        self._check_quantile()
        self.begin({})

    def _check_quantile(self) -> None:
        quantile, count = self.target_quantile, self.count_noise
        require(quantile is None or 0 < quantile < 1, _NAME + "target_quantile", "above 0 and below 1, or null", quantile)
        require(0 < self.norm_rate < 100, _NAME + "norm_rate", "above 0 and below 100", self.norm_rate)
        require(count is None or 0 < count < 1e12, _NAME + "count_noise", "above 0 and below 1e12, or null", count)
        require(quantile is not None or count is None, _NAME + "count_noise", "null without 'target_quantile'", count)
        wanted = "null with noise at the clients, which would have to send a noisy count as well"
        require(quantile is None or self.noise == "central", _NAME + "target_quantile", wanted, quantile)

    def needs(self) -> Iterator[Need]:
        """Return what the noise needs: at the server, that any client may be in any cohort, as the accountant assumes."""
        yield from super().needs()
        yield from PrivateOption.needs(self)
        if self.noise == "central":
            what = "ClientPrivacy with noise at the server needs cohorts that are drawn from all clients"
            yield Need(Capability.FULL_DRAWS, what, "Set its 'noise' to local")
        if self.target_quantile is not None:
            what = "'target_quantile' of ClientPrivacy counts the changes that were clipped"
            yield Need(Capability.SINGLE_UPDATES, what, "Remove 'target_quantile'")

    def removes(self) -> Iterator[Removal]:
        """Return what the noise takes away: other parts must not read a change before it is protected."""
        yield Removal(Capability.OPEN_CHANGES, "ClientPrivacy protects them only then", "remove ClientPrivacy")
        yield Removal(Capability.OPEN_HOLDINGS, "ClientPrivacy does not cover what clients keep", "remove ClientPrivacy")

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the clipped message; see :meth:`Transform.apply`. With local noise it is dense, in float32 at least.

        A non-finite change becomes 0; otherwise it would reveal that the client's training broke.
        """
        whole = bool(torch.isfinite(message.change).all())
        message = message if whole else replace(message, change=torch.zeros_like(message.change))
        if self._adaptive is not None:
            self._adaptive.note(sender.client, float(message.change.norm()))
        clipped = super().apply(message, sender)
        if self.noise == "central":
            return clipped
        noisy = self._noisy(clipped.change, 1, self.multiplier, sender.secret)
        return replace(clipped, change=noisy, bits=max(32, clipped.bits), positions=None, overhead=0)

    def receive(self, change: Tensor, received: int, expected: int, draw: torch.Generator, secret: KeyedStream) -> Tensor:
        """Add central noise to the average; see :meth:`Transform.receive`."""
        if self.noise == "local":
            return change
        multiplier = self.multiplier
        if self._adaptive is not None:
            multiplier = noise_of_changes(multiplier, self._noise_of_count(expected))
        return self._noisy(change * (received / expected), expected, multiplier, secret)

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
        strategy, route, transforms = settings.strategy, settings.route, settings.transforms
        if sum(isinstance(one, ClientPrivacy) for one in transforms) > 1:
            raise ConfigurationError("'federation.transforms' contains ClientPrivacy more than once. Keep one of them.")
        if type(self) is not ClientPrivacy:
            raise ConfigurationError(
                f"{type(self).__name__} is a subclass of ClientPrivacy, which may clip or add noise in another way than the "
                "reported epsilon assumes. Use ClientPrivacy itself, with a transform of your own before it."
            )
        if type(route) is not ServerRoute:
            raise ConfigurationError(
                f"ClientPrivacy covers only what clients send to the server one by one, but 'federation.route' is "
                f"{type(route).__name__}. Use ServerRoute, or remove ClientPrivacy."
            )
        if isinstance(strategy, Scaffold):
            raise ConfigurationError(
                "Scaffold's clients send control variates with their models, but ClientPrivacy covers only the models. "
                + ELSEWHERE
            )
        check_own_metrics(strategy, "ClientPrivacy")
        if self.noise == "local":
            check_declared(strategy, "local", "ClientPrivacy with noise at the clients")
        else:
            _check_central(transforms, strategy)

    def check_module(self, precision: str, module: LightningModule) -> None:
        """Refuse a precision with which clipping is not exact."""
        known = "one of at least 32 bits with ClientPrivacy, because rounding could increase the norm of changes"
        require(precision not in ("16-true", "bf16-true"), "federation.local.precision", known, precision)

    def clients_noise(self, delivered: bool) -> float:
        """Return the noise multiplier, if clients add the noise themselves."""
        return self.multiplier if delivered and self.noise == "local" else 0.0

    def released(self, task: ClientTask, data: ClientData, local: LocalSettings, attempts: int) -> Release | None:
        """Return the noisy message of a task whose model goes to the server, if clients add the noise themselves."""
        return Release("clients", self.multiplier) if task.delivers and self.noise == "local" else None

    @property
    def guarantee(self) -> str:
        """Return what all rounds of a run must share for one epsilon to cover them."""
        noise = self.noise_multiplier if self.target_epsilon is None else f"target_epsilon={self.target_epsilon}"
        more = f", target_quantile={self.target_quantile}" if self.target_quantile is not None else ""
        return f"ClientPrivacy({self.max_norm}, {noise}, {self.noise}, {self.delta}, noise_seed={self.noise_seed}{more})"

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the account that counts what all options of privacy release."""
        return account_of(self, context)

    def planned(self, federation: Federation, plan: RoundPlan, tasks: Sequence[ClientTask]) -> Entry:
        """Return the size of the cohort whose sum gets noise, or the messages that do."""
        return {"drawn": len(plan.cohort)} if self.noise == "central" else {"sent": {task.client: 1 for task in tasks}}

    def whole_run(self, context: ServerContext, rounds: int, first: int = 0) -> Spending:
        """Return sums over cohorts, or messages of clients that are drawn in every round."""
        spending = Spending()
        if self.noise == "central":
            spending.sums, spending.drawn = rounds - first, context.cohort
        else:
            spending.sent = dict.fromkeys(range(context.data.num_clients), rounds - first)
        return spending

    def cases(self, released: Sequence[Spending], data: FederatedDataModule) -> list[Case]:
        """Return the share of the largest cohort and the rounds; with local noise, the messages of each client."""
        parts = list(enumerate(released))
        if self.noise == "central":
            return [tuple((k, min(1.0, each.drawn / data.num_clients), each.sums) for k, each in parts)]
        clients = {client for each in released for client in each.sent}
        found = {tuple((k, 1.0, each.sent.get(client, 0)) for k, each in parts) for client in clients}
        return sorted(found, reverse=True)

    # ---------------------------------------------------------------- the norm

    @property
    def limit(self) -> float:
        """Return the norm to which changes are clipped in this round."""
        return self.max_norm if self._adaptive is None else self._adaptive.norm

    def begin(self, state: Mapping[str, Any]) -> None:
        """Begin with the norm of a checkpoint, or with the first one.

        Raises:
            ConfigurationError: if the noise on the count is too small for the noise that was given or solved.
        """
        known = self._solved if self.noise_multiplier is None else self.noise_multiplier
        if self.count_noise is not None and known is not None:
            noise_of_changes(known, self.count_noise)
        self._adaptive: AdaptiveNorm | None = None
        if self.target_quantile is not None:
            self._adaptive = AdaptiveNorm(state.get("norm", self.max_norm), self.target_quantile, self.norm_rate)

    def state(self) -> dict[str, Any]:
        """Return the norm of the next round."""
        return {} if self._adaptive is None else {"norm": self._adaptive.norm}

    def delivered(self, federation: Federation, clients: Iterable[int]) -> None:
        """Count the changes that were left whole."""
        if self._adaptive is not None:
            self._count = sum(federation.comm.gather(self._adaptive.take_count(clients)))

    def after_round(self, federation: Federation, round_idx: int, clients: int) -> None:
        """Set the norm of the next round."""
        if self._adaptive is not None:
            noise = float(federation.secret.stream("count of whole changes", round_idx).normals(1))
            count = self._count + noise * self._noise_of_count(clients)
            self._adaptive.norm = federation.comm.gather(self._adaptive.moved(count, clients))[0]  # to the bit on all ranks

    def figures(self, rounds: int, drawn: int) -> dict[str, float]:
        """Return the norm of this round, if it follows a quantile."""
        return {} if self._adaptive is None else {"clipping_norm": self._adaptive.norm}

    def not_at_sites(self) -> Iterable[str]:
        """Return the quantile, for which each site would have to send a count, and the seed."""
        yield from super().not_at_sites()
        yield from () if self.target_quantile is None else ("target_quantile",)

    def _noise_of_count(self, clients: int) -> float:
        return max(clients / 20, self.multiplier) if self.count_noise is None else self.count_noise

    def _noisy(self, change: Tensor, count: int, multiplier: float, secret: KeyedStream) -> Tensor:
        noise = secret.normals(change.numel()).to(change.device)
        return change + noise * (multiplier * self.limit / count)


def _check_central(transforms: Sequence[Transform], strategy: Strategy) -> None:
    """Refuse settings with which a client's part in the sum exceeds its norm."""
    name, weighting = type(strategy).__name__, getattr(strategy, "weighting", "uniform")
    how = f"weighs by '{weighting}'" if weighting != "uniform" else ""
    if not declares(strategy, "central"):
        declared = "private_with" in vars(type(strategy))
        why = f"does not declare that it computes it ({DECLARE.format('central')})"
        how = how or ("combines models in another way" if declared else why)
    if how:
        raise ConfigurationError(
            "ClientPrivacy with noise at the server needs the plain average, in which a client moves the sum by no more than "
            f"its clipped change, but {name} {how}. Set 'federation.strategy' to FedAvg or FedAvgM with 'weighting' uniform, "
            "or 'noise' to local."
        )
    if not isinstance(transforms[-1], ClientPrivacy):
        raise ConfigurationError(
            f"{type(transforms[-1]).__name__} comes after ClientPrivacy and may increase the norm of changes beyond its limit. "
            "Make ClientPrivacy the last of 'federation.transforms', or set its 'noise' to local."
        )
    changed = [type(one).__name__ for one in transforms[:-1] if type(one).receive is not Transform.receive]
    if changed:
        raise ConfigurationError(
            f"{changed[0]} changes the average at the server ('receive') before ClientPrivacy adds its noise, so a client may "
            "move it by more than its clipped change. Remove one of them, or set the 'noise' of ClientPrivacy to local."
        )


class AdaptiveNorm:
    """Count the changes that were not clipped, and move the norm by the noisy count.

    Args:
        norm: the norm of the first round.
        quantile: the share of the clients whose changes should not be clipped.
        rate: the step of the norm's logarithm.

    Attributes:
        norm: the current norm.
    """

    def __init__(self, norm: float, quantile: float, rate: float) -> None:
        self.norm, self._quantile, self._rate = norm, quantile, rate
        self._whole: dict[int, bool] = {}

    def note(self, client: int, norm: float) -> None:
        """Note on a client's rank whether its change was left whole."""
        self._whole[client] = norm <= self.norm

    def take_count(self, delivered: Iterable[int]) -> float:
        """Return the sum over delivered changes of this rank of 1/2 if they were left whole, and of -1/2 if clipped."""
        own = sum(0.5 if self._whole[client] else -0.5 for client in delivered if client in self._whole)
        self._whole.clear()
        return own

    def moved(self, count: float, clients: int) -> float:
        """Return the next round's norm.

        Args:
            count: the noisy sum of all ranks.
            clients: the number of clients in the round, including those that failed, which count as 0.
        """
        return self.norm * math.exp(-self._rate * (count / clients + 0.5 - self._quantile))


def noise_of_changes(multiplier: float, count_noise: float) -> float:
    """Return the noise multiplier of changes that with a noisy count costs what the given multiplier costs alone.

    Replacing a client moves the sum of changes by up to 2 norms, and the count by up to 1, or 2 halves. Both have Gaussian
    noise, so their squared shifts in standard deviations add up (Andrew et al. 2021, Theorem 1):
    ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``.

    Args:
        multiplier: z > 0, the noise multiplier of both together.
        count_noise: sigma_b, the standard deviation of the noise on the count.

    Raises:
        ConfigurationError: if the count alone costs more.
    """
    if not 2 * count_noise > multiplier:
        raise ConfigurationError(
            f"'count_noise' is {count_noise:g}, but must be above {multiplier / 2:g}, half of the noise "
            "multiplier, because the noisy count alone would cost more than both together. Raise it, or leave it out."
        )
    return float((multiplier**-2 - (2 * count_noise) ** -2) ** -0.5)
