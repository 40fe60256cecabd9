"""Compare the metric names in settings with the metrics that the module logs, before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.metric_names import is_validation_figure
from fl_lightning.routes.base import Route
from fl_lightning.settings.client_evaluation import ClientEvaluation
from fl_lightning.strategies.base import JointStrategy, Strategy


def names_of(strategy: Strategy, route: Route, evaluation: ClientEvaluation) -> dict[str, str]:
    """Return the metric names in the federation's settings, by setting."""
    parameters = inspect.signature(type(strategy)).parameters
    own = "federation.strategy.loss" if "loss" in parameters and "metric" not in parameters else "federation.strategy.metric"
    wanted = {
        own: [strategy.metric, strategy.local_metric, strategy.global_metric],
        "federation.route.metric": [route.server_metric],
        "federation.client_evaluation.metric": [evaluation.metric if evaluation.active else None],
    }
    if isinstance(strategy, JointStrategy):
        wanted[own].append(strategy.worth_metric)
    return {setting: name for setting, names in wanted.items() for name in names if isinstance(name, str)}


def refuse_unknown_metrics(trainer: Trainer, module: LightningModule, names: Mapping[str, str]) -> None:
    """Refuse names that begin with ``val`` if the sanity check did not log them; other metrics are logged later.

    Args:
        trainer: the Trainer at the end of its sanity check.
        module: the user's module, for the message.
        names: the metric names by setting.

    Raises:
        ConfigurationError: if a metric is not logged; it lists the logged metrics and suggests the nearest one.
    """
    logged = sorted(name for name in trainer.callback_metrics if name.startswith("val"))
    for setting, name in names.items():
        if not logged or not name.startswith("val") or name in logged:
            continue
        shown = list(filter(is_validation_figure, logged)) or logged
        raise ConfigurationError(
            f"'{setting}' is '{name}', which {type(module).__name__} does not log in validation.{did_you_mean(name, shown)} It "
            f"logs: {', '.join(shown)}. (Found in the sanity check before the first round. If the metric is logged later, set "
            "'trainer.num_sanity_val_steps' to 0.)"
        )
