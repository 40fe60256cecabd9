"""Settings that measure, on the clients' own test parts, whether the federation was worth it for each client."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need
from fl_lightning.core.client_metric import ClientMetric
from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.core.option import OptionSettings
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.client_evaluation."
ROLE = "evaluation"
"""The role of the metric in the server's orders."""


@checks_types
@dataclass(frozen=True)
class ClientEvaluation(OptionSettings):
    """Evaluate the global model on each client's own test part, and at the end compare it with models of the clients' own.

    Args:
        every_n_rounds: evaluate all clients after every n-th round and after the last, whether they took part or not, and
            those of ``data.held_out_clients``, which never do; 0 for never.
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

    setting = "client_evaluation"
    at_sites = True
    clients_may_join = False
    on_resume = ResumeRule(free="every_n_rounds personal_epochs compare_alone")

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

    def needs(self) -> Iterator[Need]:
        """Return what it needs: figures of single clients; and for the comparison, that they can begin where all began."""
        why = f"'{_NAME[:-1]}' measures each client"
        yield Need(Capability.SINGLE_FIGURES, why, f"Remove '{_NAME[:-1]}'")
        if self.compare_alone:
            why = f"'{_NAME}compare_alone' trains clients from the first model"
            yield Need(Capability.FIRST_STARTS, why, f"Set '{_NAME}compare_alone' to false")

    def measures(self) -> Iterator[ClientMetric]:
        """Return the metric on the clients' test parts."""
        yield ClientMetric(ROLE, self.metric, "test")

    def logs(self) -> Collection[str]:
        """Return the clients' scores, and the metric itself, if all rounds have them."""
        own = {self.metric} if isinstance(self.metric, str) else set[str]()
        return own | {f"federation/client_{name}" for name in ("mean", "worst", "p10")} if self.every_n_rounds == 1 else ()

    def free_on_resume(self) -> Collection[str]:
        """Return the metric and its mode if there are no earlier results that they must match."""
        return () if self.every_n_rounds else ("metric", "mode")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        from fl_lightning.options.client_evaluation.server import EvaluationAtServer

        return EvaluationAtServer(self, context)
