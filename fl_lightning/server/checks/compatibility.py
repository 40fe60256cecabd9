"""Which parts of a federation go together: refused before anything trains."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lightning.pytorch import Trainer
from torch import nn

from fl_lightning.clients.engines.selection import possible_engines
from fl_lightning.compat.torch import BatchNorm
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.routes.base import Route
from fl_lightning.server.evaluators import require_server_set
from fl_lightning.settings.attackers import Attackers
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import JointStrategy, RunningStrategy, Strategy
from fl_lightning.transforms.base import Transform


def federated_data(trainer: Trainer) -> FederatedDataModule:
    """The data of a fit.

    Raises:
        ConfigurationError: if they are not spread over clients.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        came = "no datamodule" if data is None else type(data).__name__
        raise ConfigurationError(
            f"A federation needs data that are spread over clients, but 'fit' got {came}. Wrap your datamodule: "
            "trainer.fit(module, datamodule=FederatedDataModule(your_datamodule, partitioner=IIDPartitioner(10)))."
        )
    return data


def check_strategy(strategy: Strategy, local: LocalTraining, data: FederatedDataModule, trainer: Trainer) -> None:
    """Refuse a strategy whose measurements cannot be made, or whose clients would train otherwise.

    Raises:
        ConfigurationError: saying what is missing.
    """
    if not isinstance(strategy, RunningStrategy | JointStrategy):
        raise ConfigurationError(
            f"{type(strategy).__name__} says neither what it adds to a round's sums nor how it combines all updates. Let it "
            "subclass WeightedAverage, RunningStrategy or JointStrategy."
        )
    if strategy.needs_full_batch and not local.full_batch:
        raise ConfigurationError(
            f"{type(strategy).__name__} takes one gradient of all its examples from each client, but its batches are those of "
            "the datamodule. Set 'federation.local.full_batch' to true and 'federation.local.max_epochs' to 1, or use FedAvg."
        )
    worth = strategy.worth_metric if isinstance(strategy, JointStrategy) else None
    for metric in (strategy.metric, worth):
        if metric is not None:
            require_server_set(metric, data, trainer.limit_val_batches)
    if strategy.local_metric is not None and not data.client_validation:
        raise ConfigurationError(
            f"{type(strategy).__name__} measures each client's model on the client's own validation part, and there is none. "
            "Set 'data.client_validation' to the share of its examples that a client holds back, e.g. 0.1."
        )


def check_route(route: Route, strategy: Strategy, data: FederatedDataModule, trainer: Trainer) -> None:
    """Refuse a strategy that makes no sense on the route, and warn if more ranks do not help.

    Raises:
        ConfigurationError: naming both.
        DataError: if the route needs labels and there are none.
    """
    name, rule = type(route).__name__, type(strategy).__name__
    if route.single_model and strategy.compares_clients:
        raise ConfigurationError(
            f"{name} hands a single model to the server: there is nothing for {rule} to weigh. Set 'federation.strategy' to "
            "FedAvg, or use another route."
        )
    if route.passes_models and strategy.needs_own_training:
        raise ConfigurationError(
            f"{rule} reads what each client did by itself on the way from the global model, but on the route {name} clients "
            "pass models to each other. Use FedAvg, AdaFed, FedMedian, Krum or ShapleyValues here, or the route ServerRoute."
        )
    if route.server_metric is not None:
        require_server_set(route.server_metric, data, trainer.limit_val_batches, "federation.route.metric")
    if route.needs_labels:
        try:
            data.label_counts()
        except DataError as error:
            raise DataError(f"{name} groups clients by their counts of each label, and they cannot be had. {error}") from error
    if route.sequential and trainer.world_size > 1:
        warnings.warn(
            f"{name} trains one client after another: more ranks do not make it faster. One of the {trainer.world_size} ranks "
            "works, the others wait.",
            stacklevel=2,
        )


def check_cohort(route: Route, local: LocalTraining, num_clients: int, clients_per_round: int | float) -> None:
    """Refuse a cohort that is too large, too small, or a sample where the route needs everyone.

    Raises:
        ConfigurationError: naming the setting.
    """
    size = cohort_size(num_clients, clients_per_round)
    local.partial_work.check(local.max_epochs, size)
    if route.needs_all_clients and (size < num_clients or local.partial_work.drops):
        which = f"a cohort of {size} out of {num_clients}" if size < num_clients else "stragglers that are dropped"
        raise ConfigurationError(
            f"{type(route).__name__} needs every client in every round, but this federation has {which}. Set "
            "'federation.clients_per_round' to 1.0 and keep stragglers, or use another route, such as ServerRoute."
        )


def check_faults(
    faults: Faults,
    availability: Availability,
    route: Route,
    local: LocalTraining,
    num_clients: int,
    clients_per_round: int | float,
) -> None:
    """Refuse to lose clients where the route needs all, and limits that the engine does not know.

    Raises:
        ConfigurationError: naming the settings.
    """
    faults.check(cohort_size(num_clients, clients_per_round))
    loses = "'federation.availability'" if availability.loses_clients else "'federation.faults.policy' skip"
    if route.needs_all_clients and (availability.loses_clients or faults.skips):
        raise ConfigurationError(
            f"{type(route).__name__} needs every client in every round, but {loses} may lose some. Use the policy fatal "
            "(with 'federation.faults.retries') and leave 'drop_out' and 'leave' at 0, or another route, such as ServerRoute."
        )
    limits = {"federation.faults.deadline": faults.deadline is not None, "federation.availability.slow": availability.slow > 0}
    for setting, used in limits.items():
        if used and not all(kind.checks_between_steps for kind in possible_engines(local.engine)):
            raise ConfigurationError(
                f"'{setting}' is looked at between a client's steps, but the engine '{local.engine}' may do many clients' at "
                "once. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )


def check_uplink(attackers: Attackers, transforms: Sequence[Transform], route: Route) -> None:
    """Refuse what changes updates where clients send models to each other.

    Raises:
        ConfigurationError: naming both.
    """
    first = attackers.model or next(iter(transforms), None)
    if first is not None and route.bypasses_server:
        raise ConfigurationError(
            f"{type(first).__name__} changes what a client sends to the server, but on the route {type(route).__name__} "
            "clients pass models to each other or keep them. Use the route ServerRoute, or leave 'federation.transforms' and "
            "'federation.attackers.model' out."
        )


def check_server_optimizer(strategy: Strategy, route: Route, chosen: object) -> None:
    """Refuse two optimizers for one server, and one where nothing is aggregated.

    Raises:
        ConfigurationError: naming both.
    """
    brought = type(strategy).server_optimizer is not Strategy.server_optimizer
    if route.keeps_models and (chosen is not None or brought):
        raise ConfigurationError(
            f"{type(route).__name__} aggregates nothing, so that a server's optimizer has nothing to step on. Leave "
            "'federation.server_optimizer' out and set 'federation.strategy' to FedAvg, or use another route."
        )
    if chosen is not None and brought:
        raise ConfigurationError(
            f"{type(strategy).__name__} brings the server's optimizer with it, but 'federation.server_optimizer' is set, too. "
            "Leave it out, or use FedAvg with it."
        )


def check_convex(route: Route, module: nn.Module, local: LocalTraining) -> None:
    """Refuse a model that is not linear, a loss that is not convex, and another pull, on a route that is defined without.

    Raises:
        ConfigurationError: with the reason.
    """
    if not route.needs_convex:
        return
    name = type(route).__name__
    owners = [part for part in module.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
    if len(owners) != 1 or not isinstance(owners[0], nn.Linear):
        found = ", ".join(sorted({type(owner).__name__ for owner in owners}))
        raise ConfigurationError(
            f"{name} is defined for linear models: the pull between clients lowers the joint objective only where that is "
            f"convex in the weights. {type(module).__name__} trains {len(owners)} layers ({found}). Set 'model.network' to one "
            "torch.nn.Linear (after torch.nn.Flatten for images), or 'federation.route' to FedStar or ServerRoute."
        )
    for part in module.modules():
        if getattr(part, "convex", True) is False:
            raise ConfigurationError(
                f"{name} needs a convex loss, and {type(part).__name__} is none with these settings: its joint objective could "
                "rise. Use HalfSquaredError, torch.nn.MSELoss, Hinge or CrossEntropy, or RobustLoss with shapes from 1 on."
            )
    if local.proximal_mu or not all(kind.pulls for kind in possible_engines(local.engine)):
        raise ConfigurationError(
            f"{name} pulls each client with a strength of its own: 'federation.local.proximal_mu' must be 0, and "
            "'federation.local.engine' must be trainer, fabric or auto."
        )


def check_batch_norm(module: nn.Module, data: FederatedDataModule) -> bool:
    """Refuse a client with a single example where BatchNorm would train on it.

    Returns:
        Whether the module trains BatchNorm: then a client's last batch is left out where it holds a single example.

    Raises:
        DataError: naming the client.
    """
    trains = any(isinstance(part, BatchNorm) and part.training for part in module.modules())
    sizes = data.indices.sizes + data.splits.public.numel()
    if trains and int(sizes.min()) == 1:
        client = int(sizes.argmin())
        raise DataError(
            f"Client {data.client_name(client)} has a single training example: BatchNorm has nothing to normalise it by. "
            "Use a partition with larger clients (most partitioners have 'min_examples'), or a network with GroupNorm."
        )
    return trains
