"""Name a metric that clients compute on examples of their own, and refuse one that the server cannot compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import Part

if TYPE_CHECKING:
    from fl_lightning.data.federated import FederatedDataModule


@dataclass(frozen=True)
class ClientMetric:
    """Describe a metric that clients compute whenever the server orders it by its role.

    Attributes:
        role: its name in orders, which no other part of the federation uses.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        part: the part of each client's examples on which models are evaluated.
    """

    role: str
    metric: str | Metric
    part: Part


def require_server_set(
    metric: str | Metric,
    data: FederatedDataModule,
    limit_batches: int | float,
    setting: str = "federation.strategy.metric",
    module: LightningModule | None = None,
) -> None:
    """Refuse a metric on the server's validation set if the server does not have one, or the module does not log any.

    Raises:
        ConfigurationError: if the server has no validation set, or the module no ``validation_step`` to log the metric in.
    """
    if module is not None and isinstance(metric, str) and not is_overridden("validation_step", module):
        raise ConfigurationError(
            f"'{setting}' needs {metric}, but {type(module).__name__} has no 'validation_step' to log it in. Define one, set "
            f"'{setting}' to a torchmetrics metric, or use a strategy that needs no validation, such as FedAvg."
        )
    if limit_batches == 0 or not data.has_validation_set:
        raise ConfigurationError(
            f"'{setting}' needs {metric if isinstance(metric, str) else type(metric).__name__} on the server's validation set, "
            "but the server has none. Add a 'val_dataloader' to your datamodule and keep 'trainer.limit_val_batches' above 0, "
            "or use a strategy that needs no validation set, such as FedAvg."
        )
