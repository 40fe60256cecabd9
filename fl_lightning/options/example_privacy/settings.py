"""Differential privacy of single training examples within a client's training (Abadi et al. 2016, DP-SGD)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning.compat.torch import is_batch_norm
from fl_lightning.core.capabilities import Capability, Need, Removal, ResumeRule
from fl_lightning.core.option import ClientContext, ClientHooks, ServerHooks
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.privacy import require_package
from fl_lightning.functional.releases import Case, Release
from fl_lightning.functional.spending import Entry, Spending, Spendings, hardest
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.messages import ClientTask
from fl_lightning.options.privacy_account.checks import check_declared, check_own_metrics
from fl_lightning.options.privacy_account.server import account_of
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.core.federation import Federation, FederationSettings, LocalSettings, ServerContext
    from fl_lightning.core.option import ClientData
    from fl_lightning.core.plan import RoundPlan
    from fl_lightning.data.federated import FederatedDataModule

_NAME = "federation.local.privacy."
_WHAT = "'federation.local.privacy'"


@checks_types
@dataclass(frozen=True)
class ExamplePrivacy(PrivateOption):
    """Clip each example's gradient and add Gaussian noise to the sum, in every step of every client.

    The gradient of a step is ``(sum_i g_i * min(1, max_grad_norm / |g_i|) + noise) / B``, with batch size B. Each example
    enters a batch independently with probability B / n, and an epoch has ceil(n / B) such batches. What the module does after
    that (momentum, FedProx's term, clipping of the total gradient) costs no privacy. ``federation/epsilon_of_examples`` is the
    largest privacy loss of an example. If the data name persons, it is that of a person, over all clients that hold one of its
    examples; see :func:`~fl_lightning.functional.privacy.epsilon_of_examples`.

    The loss must be the mean of one term per example. The losses of this package are; ``torch.nn.CrossEntropyLoss`` with class
    weights is not.

    Args:
        max_grad_norm: largest L2 norm of an example's gradient, > 0.
        noise_multiplier: sigma > 0; the noise on the sum has the standard deviation sigma * max_grad_norm. None with
            ``target_epsilon``.
        delta: delta of differential privacy, in (0, 1); choose it below 1 / (examples of a client).
        noise_seed: None draws noise and batches from a secret key that is new at each start. With a number, they derive from
            it and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no example.
        target_epsilon: the largest epsilon of the whole run, > 0, instead of a noise multiplier: at the start, the least noise
            is solved for the example with the largest epsilon, whose clients are drawn in every planned round.
        extend: whether a resumed run may have more rounds than planned. The noise of those that remain is then solved again,
            and is larger, so that the whole run stays within the target.

    Raises:
        ConfigurationError: for a value outside its range, or if Opacus or dp-accounting is not installed.
    """

    max_grad_norm: float
    noise_multiplier: float | None = None
    delta: float = 1e-5
    noise_seed: int | None = None
    target_epsilon: float | None = None
    extend: bool = False

    unit = "examples"
    setting = "local.privacy"
    no_rebalancing = "repeats examples, but 'federation.local.privacy' needs each example to occur only once"
    on_resume = ResumeRule(stays="*", free="extend")

    def __post_init__(self) -> None:
        require(0 < self.max_grad_norm < 1e12, _NAME + "max_grad_norm", "above 0 and below 1e12", self.max_grad_norm)
        self._check_noise("federation.local.privacy")
        require_package("opacus", "opacus", "federation.local.privacy")
        require_package("dp_accounting", "dp-accounting", "federation.local.privacy")

    def removes(self) -> Iterator[Removal]:
        """Return what the noise takes away: what clients keep has none."""
        yield Removal(Capability.OPEN_HOLDINGS, f"{_WHAT} does not cover what clients keep", f"remove {_WHAT}")

    def needs(self) -> Iterator[Need]:
        """Return what the noise needs: that it reaches all that training changes."""
        yield from super().needs()
        yield Need(Capability.FIXED_TENSORS, f"{_WHAT} does not cover such tensors", f"Remove {_WHAT}")

    def check_settings(self, settings: FederationSettings) -> None:
        """Refuse settings under which an example has more influence than its clipped gradient."""
        local, strategy, route = settings.local, settings.strategy, settings.route
        rule = strategy.client_rule()
        if strategy.own_models or (rule is not None and rule.reads_batches):
            raise ConfigurationError(
                f"{type(strategy).__name__} trains a second model of each client, or passes each batch through the module "
                f"again, which {_WHAT} does not cover. Remove one of them."
            )
        known = f"one of trainer, fabric, auto with {_WHAT}"
        require(local.engine != "stacked", "federation.local.engine", known, local.engine)
        batches = local.accumulate_grad_batches
        require(batches == 1, "federation.local.accumulate_grad_batches", f"1 with {_WHAT}", batches)
        if route.reads_data:
            raise ConfigurationError(
                f"The route {type(route).__name__} evaluates clients' models on their training examples, or counts their "
                f"labels, which {_WHAT} does not cover. Use another route, such as ServerRoute."
            )
        check_own_metrics(strategy, _WHAT)
        check_declared(strategy, "examples", _WHAT)

    def check_module(self, precision: str, module: LightningModule) -> None:
        """Refuse a precision or a module with which examples' gradients are not separate, or clipping is not exact."""
        from opacus.validators import ModuleValidator

        allowed, parts = ("32-true", "64-true", "bf16-mixed"), [*module.named_modules()]
        require(precision in allowed, "federation.local.precision", f"one of {', '.join(allowed)} with {_WHAT}", precision)
        # BatchNorm, recurrent layers, which Opacus replaces, and a term whose gradient it would drop.
        mixing = [(n, p) for n, p in parts if (is_batch_norm(p) and p.training) or isinstance(p, nn.RNNBase | ProximalLoss)]
        found = [f"{name or type(part).__name__} ({type(part).__name__})" for name, part in mixing]
        found += [str(error) for error in ModuleValidator.validate(module) if not found and module.training]
        if not module.automatic_optimization:
            found.append(f"{type(module).__name__} optimizes manually")
        whys = [(name or "the loss", type(part).__name__, _no_mean(part)) for name, part in parts]
        found += [f"{name} ({kind}: {why})" for name, kind, why in whys if why]
        if found:
            raise ConfigurationError(
                f"{_WHAT} cannot separate an example's gradient from the others: {'; '.join(found[:3])}. Use GroupNorm instead "
                "of BatchNorm, layers that Opacus supports (its DPLSTM for LSTM), 'federation.local.proximal_mu' instead of "
                f"ProximalLoss, and automatic optimization, or remove {_WHAT}."
            )

    def clients_noise(self, delivered: bool) -> float:
        """Return the multiplier of the noise in every step, which covers all models."""
        return self.multiplier

    @property
    def guarantee(self) -> str:
        """Return what all rounds of a run must share for one epsilon to cover them."""
        noise = f"noise_multiplier={self.noise_multiplier}"
        noise = noise if self.target_epsilon is None else f"target_epsilon={self.target_epsilon}"
        return f"ExamplePrivacy(max_grad_norm={self.max_grad_norm}, {noise}, delta={self.delta}, noise_seed={self.noise_seed})"

    def at_clients(self, context: ClientContext) -> ClientHooks:
        """Return the hooks where clients train."""
        from fl_lightning.options.example_privacy.clients import PrivateSteps

        return PrivateSteps(self.max_grad_norm, lambda: self.multiplier, context)

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the account that counts what all options of privacy release."""
        return account_of(self, context)

    def planned(self, federation: Federation, plan: RoundPlan, tasks: Sequence[ClientTask]) -> Entry:
        """Return the steps of each turn and of its retries, and the rates at which they sample examples."""
        data, local = federation.data, federation.settings.local
        quick: bool = federation.trainer.fast_dev_run  # type: ignore[attr-defined]
        plans = {task.client: _steps(data, local, task.client, task.epochs, task.slowness, quick) for task in tasks}
        attempts = 1 + federation.settings.faults.retries
        return {
            "steps": {client: steps * attempts for client, (steps, _) in plans.items()},
            "rates": {client: rate for client, (_, rate) in plans.items()},
        }

    def released(self, task: ClientTask, data: ClientData, local: LocalSettings, attempts: int) -> Release:
        """Return the noisy steps of a task."""
        steps, rate = _steps(data, local, task.client, task.epochs, task.slowness)
        return Release("examples", self.multiplier, rate, steps * attempts)

    def whole_run(self, context: ServerContext, rounds: int, first: int = 0) -> Spending:
        """Return the steps of clients that are drawn in every round, and that may try again in the last one."""
        settings, spending = context.settings, Spending()
        quick: bool = context.trainer.fast_dev_run  # type: ignore[attr-defined]
        turns = settings.route.turns_before(rounds) - settings.route.turns_before(first) + settings.faults.retries
        for client in range(context.data.num_clients):
            steps, spending.rates[client] = _steps(context.data, settings.local, client, quick=quick)
            spending.steps[client] = steps * turns
        return spending

    def cases(self, released: Sequence[Spending], data: FederatedDataModule) -> list[Case]:
        """Return the rates and the numbers of the steps of each client, and of clients that share a person together."""
        found = {_case(client, released) for each in released for client in each.steps}
        found |= hardest(data.client_datasets.sharing, released) if data.client_datasets.sharing else set()
        return sorted(found, key=lambda case: -sum(rate * math.sqrt(steps) for _, rate, steps in case))

    def epsilon_of(self, client: int, spending: Spendings, data: FederatedDataModule) -> float:
        """Return the largest epsilon of a client's examples, whose persons other clients may train on, too."""
        groups = [group for group in data.client_datasets.sharing if client in group]
        released = [each for _, each in spending.parts]
        cases = hardest(groups, released) if groups else {_case(client, released)}
        return max(self.epsilon(self.noises(spending), case) for case in cases)


def _case(client: int, released: Sequence[Spending]) -> Case:
    return tuple((k, each.rates.get(client, 0.0), each.steps.get(client, 0)) for k, each in enumerate(released))


def _steps(
    data: ClientData | FederatedDataModule,
    local: LocalSettings,
    client: int,
    epochs: int | None = None,
    slowness: float = 1.0,
    quick: bool = False,
) -> tuple[int, float]:
    """Return the number of steps in a client's fit, and the rate at which they sample examples."""
    batches = data.poisson_batches(client, local.full_batch, _never)
    steps = local.steps(len(batches), epochs) / slowness
    return 1 if quick else max(1, int(steps)), batches.rate


def _never(batch: int, count: int) -> Tensor:
    raise AssertionError("These batches are counted, not drawn.")


def _no_mean(part: nn.Module) -> str:
    """Return why a loss is no mean over examples, in which one example would change the shares of the others."""
    reduction = getattr(part, "reduction", None)
    if not isinstance(reduction, str):  # which torch's losses have
        return ""
    if reduction != "mean":
        return f"reduction '{reduction}' instead of 'mean'"
    if getattr(part, "weight", None) is not None:
        return "class weights, by whose sum the loss is divided"
    return "'ignore_index', which changes the number of examples" if getattr(part, "ignore_index", -1) >= 0 else ""
