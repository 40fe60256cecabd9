"""Whether the federation was worth it for each client: what is measured on the clients' own test parts, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchmetrics import Metric

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better

_NAME = "federation.client_evaluation."


@dataclass(frozen=True)
class ClientEvaluation:
    """The global model on each client's own test part, during the run; and at its end against the client's own models.

    Args:
        every_n_rounds: evaluate all clients after every n-th round, whoever took part, and after the last; 0 for never.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        mode: whether more (``max``) or less (``min``) is better; by default what the torchmetrics metric says of itself,
            or its name: see :func:`~fl_lightning.functional.metric_mode.known_direction`.
        personal_epochs: at the end every client fine-tunes the global model for so many epochs on its training part; 0 for
            none.
        compare_alone: at the end every client also trains by itself, from the model that the federation began with, for as
            many epochs as it trained in the federation (Fed-Star thesis, Table 5.8).

    Raises:
        ConfigurationError: for a value outside its range, or without a mode where the metric does not tell.
    """

    every_n_rounds: int = 0
    metric: str | Metric = "val_accuracy"
    mode: Literal["max", "min"] | None = None
    personal_epochs: int = 0
    compare_alone: bool = False

    def __post_init__(self) -> None:
        require(self.every_n_rounds >= 0, _NAME + "every_n_rounds", "0 or above", self.every_n_rounds)
        require(self.personal_epochs >= 0, _NAME + "personal_epochs", "0 or above", self.personal_epochs)
        if self.active:
            higher_is_better(self.metric, self.mode, _NAME + "mode")

    @property
    def compares(self) -> bool:
        """Whether clients have models of their own to compare with at the end."""
        return self.compare_alone or self.personal_epochs > 0

    @property
    def active(self) -> bool:
        """Whether anything is measured."""
        return self.compares or self.every_n_rounds > 0

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return higher_is_better(self.metric, self.mode, _NAME + "mode")

    def check(self, data: FederatedDataModule) -> None:
        """Refuse to measure on test parts that are not there.

        Raises:
            ConfigurationError: saying what to set.
        """
        if self.active and not data.client_test:
            raise ConfigurationError(
                "'federation.client_evaluation' measures on each client's own test part, and there is none. Set "
                "'data.client_test' to the share of its examples that a client holds back, e.g. 0.2."
            )
