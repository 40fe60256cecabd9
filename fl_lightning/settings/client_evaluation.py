"""Settings that measure, on the clients' own test parts, whether the federation was worth it for each client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.client_evaluation."


@checks_types
@dataclass(frozen=True)
class ClientEvaluation:
    """Evaluate the global model on each client's own test part, and at the end compare it with models of the clients' own.

    Args:
        every_n_rounds: evaluate all clients after every n-th round and after the last, whether they took part or not; 0 for
            never.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        mode: ``max`` if higher is better, ``min`` if lower is; by default, what the torchmetrics metric declares, or what its
            name implies: see :func:`~fl_lightning.functional.metric_mode.known_direction`.
        personal_epochs: at the end, the number of epochs for which every client fine-tunes the global model on its training
            part; 0 for no fine-tuning.
        compare_alone: at the end, train every client also by itself, from the model that the federation began with, for as
            many epochs as it trained in the federation (Fed-Star thesis, Table 5.8).

    Raises:
        ConfigurationError: for a value outside its range, or if neither ``mode`` nor the metric says which direction is better.
    """

    every_n_rounds: int = 0
    metric: str | Metric = "val_accuracy"
    mode: Literal["max", "min"] | None = None
    personal_epochs: int = 0
    compare_alone: bool = False
    on_resume = ResumeRule(free="every_n_rounds personal_epochs compare_alone", on_purpose="metric mode")

    def __post_init__(self) -> None:
        require(self.every_n_rounds >= 0, _NAME + "every_n_rounds", "0 or above", self.every_n_rounds)
        require(self.personal_epochs >= 0, _NAME + "personal_epochs", "0 or above", self.personal_epochs)
        if self.active:
            higher_is_better(self.metric, self.mode, _NAME + "mode")

    @property
    def compares(self) -> bool:
        """Whether clients have models of their own for the comparison at the end."""
        return self.compare_alone or self.personal_epochs > 0

    @property
    def active(self) -> bool:
        """Whether anything is measured."""
        return self.compares or self.every_n_rounds > 0

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the metric are better."""
        return higher_is_better(self.metric, self.mode, _NAME + "mode")

    def removes(self) -> Iterator[Removal]:
        """Return what the comparison with clients alone takes away: they can only begin as in the first round."""
        if self.compare_alone:
            why = f"'{_NAME}compare_alone' trains clients from the first model"
            yield Removal(Capability.MOVING_STARTS, why, f"set '{_NAME}compare_alone' to false")

    def needs(self) -> tuple[Need, ...]:
        """Return nothing."""
        return ()

    def provides(self) -> tuple[Capability, ...]:
        """Return nothing."""
        return ()

    def check(self, data: FederatedDataModule) -> None:
        """Reject the evaluation if the clients have no test parts.

        Raises:
            ConfigurationError: if they have none; it says what to set.
        """
        if self.active and not data.clients_hold("test"):
            raise ConfigurationError(
                "'federation.client_evaluation' measures on each client's own test part, but the clients have no test parts. "
                "Set 'data.client_test' to the share of its examples that each client holds back, e.g. 0.2."
            )
