"""Refuse settings that do not work with personal parts, and let no metric of an incomplete model decide anything."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torchmetrics import Metric

from fl_lightning.errors import CheckpointError, ConfigurationError, did_you_mean
from fl_lightning.functional.model_state import ModelState
from fl_lightning.losses.adaptive import AdaptiveLoss
from fl_lightning.server.checks.privacy import privacy_in_words
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.strategies.base import JointStrategy

_SHOWN = 6


def check_personal(owner: FederationSettings, trainer: Trainer) -> None:
    """Refuse parts of a federation that need the server to evaluate a complete model.

    Raises:
        ConfigurationError: if a part does not work with personal parts; it says what to use instead.
    """
    if owner.strategy.needs_personal and not owner.personal:
        raise ConfigurationError(
            f"{type(owner.strategy).__name__} needs a head of each client, but 'federation.personal' is empty. Name the head's "
            "parameters there, such as [{names: 'head.*'}]."
        )
    _check_start(owner)
    if not owner.personal:
        return
    strategy, route = owner.strategy, owner.route
    worth = strategy.worth_metric if isinstance(strategy, JointStrategy) else None
    if strategy.metric is not None or worth is not None:
        raise ConfigurationError(
            f"{type(strategy).__name__} scores clients' models on the server's set, but with 'federation.personal' the server "
            "gets only the shared part of a model. Use a strategy without such scores, such as FedAvg, or one that reads the "
            "clients' own scores ('local_metric'), such as FedLoss or AdaFed with 'scored_by' clients."
        )
    if route.keeps_models or route.server_metric is not None:
        why = "keeps whole models at the clients" if route.keeps_models else "scores models on the server's set"
        raise ConfigurationError(
            f"The route {type(route).__name__} {why}, which does not work with 'federation.personal'. Remove one of them, or "
            "use the route ServerRoute."
        )
    for part in trainer.lightning_module.modules():
        if isinstance(part, AdaptiveLoss) and part.signal is not None:
            raise ConfigurationError(
                f"{type(part).__name__} adapts to the server's validation, but with 'federation.personal' the server does not "
                "validate, because its model is incomplete. Use another loss, such as CrossEntropy."
            )
    _check_monitors(owner, trainer)


def _check_start(owner: FederationSettings) -> None:
    """Refuse ``personal_start: mean`` if the server cannot form that mean."""
    if owner.personal_start == "first":
        return
    why = None
    if not owner.personal:
        why = "'federation.personal' is empty, so there are no parts to average. Name them there"
    elif owner.pool is not None:
        why = "the server of a real federation never has the clients' personal parts"
    elif owner.client_evaluation.compare_alone:
        why = "'federation.client_evaluation.compare_alone' trains clients from the first model. Set that to false"
    elif owner.asynchronous is not None:
        why = "with 'federation.asynchronous' each client trains from a model of another time. Remove that"
    if why is not None:
        raise ConfigurationError(
            f"'federation.personal_start' is '{owner.personal_start}', but {why}, or set 'federation.personal_start' to first."
        )


def _check_monitors(owner: FederationSettings, trainer: Trainer) -> None:
    """Refuse callbacks that monitor a metric of the server's validation set."""
    evaluation = owner.client_evaluation
    metric = evaluation.metric if isinstance(evaluation.metric, str) else ""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str) or not monitor.startswith(("val", "federation/client_")):
            continue
        known = {metric, "federation/client_mean", "federation/client_worst", "federation/client_p10"}
        if evaluation.every_n_rounds != 1 or monitor not in known:
            raise ConfigurationError(
                f"{type(callback).__name__} monitors '{monitor}', but with 'federation.personal' the server does not validate, "
                "because its model is incomplete. The clients' own evaluation takes its place: set "
                f"'federation.client_evaluation' to {{every_n_rounds: 1, metric: {monitor}}} and 'data.client_test' to the "
                f"share of its examples that each client holds back, e.g. 0.2.{did_you_mean(monitor, known, cutoff=0.8)}"
            )


def without_validation(owner: FederationSettings, trainer: Trainer, cleanup: ExitStack) -> None:
    """Switch off the server's validation during a fit with personal parts."""
    if owner.personal:
        cleanup.callback(setattr, trainer, "limit_val_batches", trainer.limit_val_batches)
        trainer.limit_val_batches = 0


def client_figures(owner: FederationSettings, scores: dict[str, float]) -> dict[str, float]:
    """Return what the log has of the clients' scores; with personal parts, their mean is also logged as the metric itself.

    Args:
        owner: the federation's settings.
        scores: the result of ``spread_of_clients``; empty in a round without an evaluation.
    """
    figures = {f"federation/{name}": value for name, value in scores.items()}
    metric: str | Metric = owner.client_evaluation.metric
    if owner.personal and scores and isinstance(metric, str):
        figures[metric] = scores["client_mean"]
    return figures


def announce_personal(owner: FederationSettings, server: ModelState) -> None:
    """Print which tensors are personal, and how many bytes of each message this saves.

    Raises:
        ConfigurationError: if nothing is shared, but the clients need something to correct.
    """
    own = server.own_tensors()
    if not own:
        return
    if not server.num_parameters and (owner.strategy.client_rule() is not None or owner.strategy.needs_personal):
        raise ConfigurationError(
            f"'federation.personal' matches every parameter, so {type(owner.strategy).__name__} has nothing to correct. Match "
            "fewer parameters, or use FedAvg."
        )
    saved, sent = sum(tensor.nbytes for tensor in own.values()), server.nbytes(upward=True)
    names = ", ".join([*own][:_SHOWN]) + (f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else "")
    rank_zero_info(
        f"Each client keeps {len(own)} tensors for itself: {names}. A message carries {sent:,} bytes instead of "
        f"{sent + saved:,} in each direction ({100 * saved / (sent + saved):.1f} % saved)."
    )
    private = privacy_in_words(owner.transforms, owner.local)
    if private:
        rank_zero_info(
            f"Differential privacy ({private}) covers what the clients send. Personal parts have none: whoever gets a client's "
            "complete model, such as an export, may learn about its examples from them."
        )


def warn_incomplete(owner: FederationSettings, trainer: Trainer) -> None:
    """Warn about an evaluation of the module as it is: after a fit with personal parts, these are still those of the start."""
    if owner.personal and not trainer.ckpt_path:
        parts = "those of the start" if owner.personal_start == "first" else "the mean of the clients'"
        rank_zero_warn(
            "The module is evaluated as it is in memory. After a federation with 'federation.personal', its personal parts are "
            f"{parts}: write a client's complete model with 'fl-lightning export --client NAME', and evaluate that."
        )


def refuse_incomplete(checkpoint: dict[str, Any], key: str) -> None:
    """Refuse to evaluate a checkpoint of which clients keep personal parts.

    Args:
        checkpoint: the checkpoint as it was read.
        key: the key of the federation's state in the checkpoint.

    Raises:
        CheckpointError: if its model is incomplete.
    """
    state = checkpoint.get("callbacks", {}).get(key) or {}
    if state.get("settings", {}).get("federation", {}).get("personal"):
        raise CheckpointError(
            "The checkpoint holds only the shared part of the model, because its federation has personal parts. Write a "
            "client's complete model with 'fl-lightning export --client NAME', and evaluate that file."
        )
