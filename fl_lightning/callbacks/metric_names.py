"""Compare the metric names in settings with the metrics that the module logs, before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from fl_lightning.callbacks.checkpoints import BestCheckpoint
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.metric_names import is_validation_figure
from fl_lightning.losses.adaptive import AdaptiveLoss
from fl_lightning.routes.base import Route
from fl_lightning.strategies.base import JointStrategy, Strategy

Names = list[tuple[str, str]]
"""Metric names, each after the setting that has it."""


def names_of(strategy: Strategy, route: Route, options: Iterable[OptionSettings], module: LightningModule) -> Names:
    """Return the metric names in the federation's settings, and those that adaptive losses follow."""
    parameters = inspect.signature(type(strategy)).parameters
    own = "federation.strategy.loss" if "loss" in parameters and "metric" not in parameters else "federation.strategy.metric"
    of_strategy = [strategy.metric, strategy.local_metric, strategy.global_metric]
    if isinstance(strategy, JointStrategy):
        of_strategy.append(strategy.worth_metric)
    wanted: list[tuple[str, object]] = [
        *((own, metric) for metric in of_strategy),
        *(("federation.route.metric", metric) for metric in (route.server_metric, route.client_metric)),
    ]
    wanted += [(f"federation.{option.setting}.metric", one.metric) for option in options for one in option.measures()]
    losses = [part for part in module.modules() if isinstance(part, AdaptiveLoss)]
    wanted += [(f"{type(loss).__name__}.signal", getattr(loss, "signal", None)) for loss in losses]
    return [(setting, name) for setting, name in wanted if isinstance(name, str)]


def monitors_of(trainer: Trainer) -> Names:
    """Return the metrics without which callbacks fail and that begin with ``val``; other metrics are logged later."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    strict = [
        callback
        for callback in callbacks
        if (isinstance(callback, EarlyStopping) and callback.strict)
        or (isinstance(callback, ModelCheckpoint) and callback.save_top_k != 0)
    ]
    section: dict[type, str] = {BestCheckpoint: "best_checkpoint"}
    monitors = [(f"{section.get(type(one), type(one).__name__)}.monitor", str(one.monitor)) for one in strict]
    return [(setting, name) for setting, name in monitors if name.startswith("val")]


def refuse_unknown_metrics(trainer: Trainer, module: LightningModule, names: Sequence[tuple[str, str]]) -> None:
    """Refuse metrics of the validation that the sanity check did not log, if it logged any.

    Args:
        trainer: the Trainer at the end of its sanity check.
        module: the user's module.
        names: the metric names, each after the setting that has it.

    Raises:
        ConfigurationError: if a metric is not logged; it lists the logged metrics and suggests the nearest one.
    """
    logged = sorted(trainer.callback_metrics)
    for setting, name in names:
        if not logged or name in logged:
            continue
        shown = [known for known in logged if "/" not in known or is_validation_figure(known)] or logged
        raise ConfigurationError(
            f"'{setting}' is '{name}', which {type(module).__name__} does not log in validation.{did_you_mean(name, shown)} It "
            f"logs: {', '.join(shown)}. (Found in the sanity check before the first round. If the metric is logged later, set "
            "'trainer.num_sanity_val_steps' to 0.)"
        )
