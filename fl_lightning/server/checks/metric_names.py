"""Names of metrics that settings refer to, compared with what the module logs before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.routes.base import Route
from fl_lightning.settings.client_evaluation import ClientEvaluation
from fl_lightning.strategies.base import JointStrategy, Strategy


def names_of(strategy: Strategy, route: Route, evaluation: ClientEvaluation) -> dict[str, str]:
    """Return the metrics that a federation asks for by name, by the setting that names them."""
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
    """Compare names that begin with ``val`` with what the sanity check has logged; other metrics come later.

    Args:
        trainer: at the end of its sanity check.
        module: for the message.
        names: metrics by the setting that names them.

    Raises:
        ConfigurationError: naming the setting, the metric, those that are logged, and the nearest of them.
    """
    logged = sorted(name for name in trainer.callback_metrics if name.startswith("val"))
    for setting, name in names.items():
        if not logged or not name.startswith("val") or name in logged:
            continue
        shown = [other for other in logged if "/" not in other] or logged
        raise ConfigurationError(
            f"'{setting}' is '{name}', which {type(module).__name__} does not log in validation.{did_you_mean(name, shown)} It "
            f"logs: {', '.join(shown)}. (Found by the sanity check before the first round; 'trainer.num_sanity_val_steps' 0 "
            "skips it.)"
        )
