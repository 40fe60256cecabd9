"""Refuse parts of a federation that do not work together, with the Trainer, or with the data, before training starts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from fl_lightning.compat.torch import parameters_of
from fl_lightning.core.capabilities import Capability, Need, Removal, Unassuming, check_parts
from fl_lightning.core.federation import parts_of
from fl_lightning.core.option import own_cohort, require_server_set
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.rules.base import ClientRule
from fl_lightning.server.checks.incomplete import check_incomplete
from fl_lightning.settings.local_training import FederationSettings, LocalTraining
from fl_lightning.settings.server import Faults
from fl_lightning.strategies.base import JointStrategy, RunningStrategy, Strategy


def federated_data(trainer: Trainer) -> FederatedDataModule:
    """Return the federated data of a fit.

    Raises:
        ConfigurationError: if the data are not divided among clients.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        came = "no datamodule" if data is None else type(data).__name__
        raise ConfigurationError(
            f"A federation needs data that are divided among clients, but 'fit' got {came}. Wrap your datamodule: "
            "trainer.fit(module, datamodule=FederatedDataModule(your_datamodule, partitioner=IIDPartitioner(10))), or your "
            "loaders: trainer.fit(module, FederatedDataModule.from_loaders(train_loader, val_loader, "
            "partitioner=IIDPartitioner(10)))."
        )
    return data


def check_part(part: Strategy | Route, faults: Faults, size: int, num_clients: int) -> None:
    """Refuse a strategy or route that saves a state without restoring it, or that needs clients which a round may lack.

    Raises:
        ConfigurationError: naming the missing method, or the setting by which a round lacks clients.
    """
    base: Any = Strategy if isinstance(part, Strategy) else Route
    other = "strategy, such as FedAvg" if base is Strategy else "route, such as ServerRoute"
    saves, loads = (getattr(type(part), name) is not getattr(base, name) for name in ("state_dict", "load_state_dict"))
    if saves != loads:
        own, missing = ("state_dict", "load_state_dict") if saves else ("load_state_dict", "state_dict")
        raise ConfigurationError(
            f"{type(part).__name__} defines '{own}' but not '{missing}', so a resumed run would lose its state. Define both: "
            "'load_state_dict(state)' restores the attributes that 'state_dict()' returns."
        )
    needs = f"{type(part).__name__} needs every client in every round, but"
    lacks = ""
    if size < num_clients:
        lacks = f"this federation has a cohort of {size} out of {num_clients}. Set 'federation.clients_per_round' to 1.0"
    elif faults.skips:
        lacks = "'federation.faults.policy' skip may lose some. Use the policy fatal (with 'federation.faults.retries')"
    if part.needs_all_clients and lacks:
        raise ConfigurationError(f"{needs} {lacks}, or use another {other}.")


def check_strategy(strategy: Strategy, local: LocalTraining, data: FederatedDataModule, trainer: Trainer) -> None:
    """Refuse a strategy whose metrics cannot be computed, or whose clients would train with other settings.

    Raises:
        ConfigurationError: if the strategy cannot work; it says what is missing.
    """
    if not isinstance(strategy, RunningStrategy | JointStrategy):
        raise ConfigurationError(
            f"{type(strategy).__name__} does not define how to aggregate updates. Make it a subclass of WeightedAverage, "
            "RunningStrategy or JointStrategy."
        )
    if local.max_epochs < strategy.least_epochs and strategy.least_epochs > 1:  # -1 has no limit
        raise ConfigurationError(
            f"{type(strategy).__name__} with these settings needs {strategy.least_epochs} local epochs or more, but "
            f"'federation.local.max_epochs' is {local.max_epochs}. Raise it, or lower 'federation.strategy.head_epochs'."
        )
    if strategy.needs_full_batch and not local.full_batch:
        raise ConfigurationError(
            f"{type(strategy).__name__} needs one gradient over all examples of each client, but clients train on the batches "
            "of the datamodule. Set 'federation.local.full_batch' to true and 'federation.local.max_epochs' to 1, or use "
            "FedAvg."
        )
    if strategy.needs_fresh_optimizers and local.optimizer_state == "kept":
        raise ConfigurationError(
            f"{type(strategy).__name__} has no rule for momentum from earlier rounds, but 'federation.local.optimizer_state' "
            "is 'kept'. Set it to 'fresh', or use another strategy, such as FedAvg."
        )
    rule = strategy.client_rule()
    joins = rule is not None and rule.reads_batches and type(rule).join_optimizers is not ClientRule.join_optimizers
    if joins and local.gradient_clip_val and local.gradient_clip_algorithm != "value":
        raise ConfigurationError(
            f"{type(strategy).__name__} trains two models with the clients' optimizer, so 'federation.local.gradient_clip_val' "
            f"({local.gradient_clip_val}) would clip the norm of both gradients together. Set "
            "'federation.local.gradient_clip_algorithm' to value, or remove the clipping."
        )
    worth = strategy.worth_metric if isinstance(strategy, JointStrategy) else None
    for metric in (strategy.metric, worth):
        if metric is not None:
            require_server_set(metric, data, trainer.limit_val_batches, module=trainer.lightning_module)
    if strategy.local_metric is not None and not data.clients_hold("validation"):
        raise ConfigurationError(
            f"{type(strategy).__name__} evaluates each client's model on the client's own validation part, but clients have "
            "none. Set 'data.client_validation' to the share of examples that each client holds back, e.g. 0.1."
        )


def check_route(route: Route, strategy: Strategy, data: FederatedDataModule, trainer: Trainer) -> None:
    """Refuse a strategy that does not work on the route, and warn if more ranks do not help.

    Raises:
        ConfigurationError: if the strategy and the route do not work together.
        DataError: if the route needs labels, but the data have none.
    """
    name, rule = type(route).__name__, type(strategy).__name__
    if route.single_model and strategy.compares_clients:
        raise ConfigurationError(
            f"{name} sends a single model to the server, so {rule} has nothing to weigh. Set 'federation.strategy' to FedAvg, "
            "or use another route."
        )
    if route.passes_models and strategy.needs_own_training:
        raise ConfigurationError(
            f"{rule} needs each client to train by itself from the global model, but on the route {name} clients pass models "
            "to each other. Use FedAvg, AdaFed, FedMedian, Krum or ShapleyValues, or use the route ServerRoute."
        )
    if strategy.own_models and type(route) is not ServerRoute:
        raise ConfigurationError(
            f"{rule} keeps a model of each client's own, which the route {name} does not support. Use the route ServerRoute."
        )
    if route.server_metric is not None:
        setting = "federation.route.metric"
        require_server_set(route.server_metric, data, trainer.limit_val_batches, setting, trainer.lightning_module)
    if route.needs_labels:
        try:
            data.label_counts()
        except DataError as error:
            raise DataError(f"{name} groups clients by their label counts, which are not available. {error}") from error
    if route.sequential and trainer.world_size > 1:
        warnings.warn(
            f"{name} trains one client after another: more ranks do not make it faster. One of the {trainer.world_size} "
            "ranks works and the others wait. Set 'trainer.devices' to 1.",
            stacklevel=2,
        )


def check_server_optimizer(strategy: Strategy, route: Route, chosen: object) -> None:
    """Refuse two optimizers for one server, and an optimizer if nothing is aggregated.

    Raises:
        ConfigurationError: if the strategy or the route does not work with a server optimizer.
    """
    brought = type(strategy).server_optimizer is not Strategy.server_optimizer
    if route.keeps_models and (chosen is not None or brought):
        raise ConfigurationError(
            f"{type(route).__name__} aggregates nothing, so the server's optimizer has nothing to step on. Remove "
            "'federation.server_optimizer' and set 'federation.strategy' to FedAvg, or use another route."
        )
    if chosen is not None and brought:
        raise ConfigurationError(
            f"{type(strategy).__name__} has its own server optimizer, but 'federation.server_optimizer' is also set. Remove "
            "it, or use FedAvg with it."
        )


def check_convex(route: Route, module: nn.Module, local: LocalTraining) -> None:
    """Refuse non-linear models, non-convex losses and proximal terms on a route that is not defined for them.

    Raises:
        ConfigurationError: if the route is not defined for the settings; it gives the reason.
    """
    if not route.needs_convex:
        return
    name = type(route).__name__
    owners = [part for part in module.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
    if len(owners) != 1 or not isinstance(owners[0], nn.Linear):
        found = ", ".join(sorted({type(owner).__name__ for owner in owners}))
        raise ConfigurationError(
            f"{name} is defined only for linear models, because its pull between clients needs an objective that is convex in "
            f"the weights, but {type(module).__name__} trains {len(owners)} layers ({found}). Set 'model.network' to a single "
            "torch.nn.Linear (after torch.nn.Flatten for images), or 'federation.route' to FedStar or ServerRoute."
        )
    for part in (part for part in module.modules() if getattr(part, "convex", True) is False):
        raise ConfigurationError(
            f"{name} needs a convex loss, but {type(part).__name__} is not convex with these settings. Use HalfSquaredError, "
            "torch.nn.MSELoss, Hinge or CrossEntropy, or RobustLoss with shapes of 1 or above."
        )
    if local.proximal_mu or local.side_by_side:
        raise ConfigurationError(
            f"{name} pulls each client with a different strength. Set 'federation.local.proximal_mu' to 0, and "
            "'federation.local.engine' to trainer, fabric or auto."
        )


def refuse_late_parts(module: LightningModule, before: Collection[str]) -> None:
    """Refuse layers that a module builds in ``on_fit_start``, when Lightning has asked for its optimizers already.

    Args:
        module: the server's module, after its ``on_fit_start``.
        before: the names of its parameters before.

    Raises:
        ConfigurationError: naming a parameter.
    """
    late = [name for name in parameters_of(module) if name not in before]
    if late:
        raise ConfigurationError(
            f"{type(module).__name__} builds '{late[0]}' in 'on_fit_start', after Lightning has called 'configure_optimizers', "
            "so without a federation it would not train either, and clients would each begin with another. Build it in "
            "'__init__', 'setup' or 'configure_model'."
        )


@dataclass(frozen=True)
class Cohorts(Unassuming):
    """State what rounds need that draw a cohort, and that they wait for it.

    Args:
        per_round: the size of a cohort, a number or a fraction of all clients.
        drawn: whether rounds draw cohorts.
    """

    per_round: int | float
    drawn: bool

    def needs(self) -> Iterator[Need]:
        """Return what a size of cohorts needs."""
        if self.per_round != 1.0:
            what = f"'federation.clients_per_round' ({self.per_round}) is the size of the cohort that each round draws"
            yield Need(Capability.COHORTS, what, "Remove it")

    def removes(self) -> Iterator[Removal]:
        """Return what rounds do not do that wait."""
        if self.drawn:
            yield Removal(Capability.OWN_PACE, "each round waits for all clients of its cohort", "use FedAvg")


def round_size(settings: FederationSettings, num_clients: int) -> int:
    """Return the number of clients in a round: of the cohort, or as an option plans it.

    Raises:
        ConfigurationError: if it exceeds the number of clients.
    """
    own = own_cohort(settings.active_options, num_clients)
    return cohort_size(num_clients, settings.clients_per_round) if own is None else own


def check_federation(settings: FederationSettings, trainer: Trainer, data: FederatedDataModule) -> None:
    """Refuse settings that do not fit each other, the Trainer or the data.

    Raises:
        ConfigurationError: with the settings that do not fit, and what to change.
    """
    drawn = own_cohort(settings.active_options, data.num_clients) is None
    check_parts([*parts_of(settings), Cohorts(settings.clients_per_round, drawn)])
    check_incomplete(settings, trainer)
    size, faults = round_size(settings, data.num_clients), settings.faults
    wanted = f"at most the {size} clients of a round"
    require(faults.needed(size) <= size, "federation.faults.min_updates", wanted, faults.min_updates)
    if faults.deadline is not None:
        settings.local.require_steps("federation.faults.deadline")
    for part in (settings.route, settings.strategy):
        check_part(part, faults, size, data.num_clients)
    check_strategy(settings.strategy, settings.local, data, trainer)
    for option in settings.active_options:
        option.check_settings(settings)
    check_route(settings.route, settings.strategy, data, trainer)
    check_server_optimizer(settings.strategy, settings.route, settings.server_optimizer)


def warn_unprotected(settings: FederationSettings) -> None:
    """Warn if a training without a federation leaves out settings that were to protect the clients."""
    unused = [option.title for option in settings.active_options if option.protects]
    if unused:
        rank_zero_warn(
            f"'federation.enabled' is false, so the module trains on all examples in one place, and {' and '.join(unused)} "
            "protects nothing. Set 'federation.enabled' to true to train with it."
        )
