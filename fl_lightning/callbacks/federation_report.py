"""One callback that reports a whole run, in Python as on the command line."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.callbacks.client_table import ClientTable
from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.callbacks.partition_report import PartitionReport
from fl_lightning.reporting.summary import final_summary, run_settings
from fl_lightning.reporting.wandb import describe_run, require_space, summarise_tests, where_to_look


class FederationReport(FederationCallback):
    """Report a run as the command line does: the partition, the clients, the settings, and a summary at the end.

    It includes :class:`PartitionReport` and :class:`ClientTable`, and adds them to the Trainer if it has none of its own. A W&B
    run gets the settings as its configuration and the results of a test in its summary. A fit ends with lines that give the
    results and the location of every file; for an offline W&B run they include the command that uploads it.
    """

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        self._speaks = True  # False for a second report in the same Trainer

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Add the two other callbacks for a fit, and send the figures of a test to the summary."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        self._speaks = self is next(callback for callback in callbacks if isinstance(callback, FederationReport))
        if stage == "fit":
            for kind in (ClientTable, PartitionReport):
                if not any(isinstance(callback, kind) for callback in callbacks):
                    callbacks.insert(callbacks.index(self) + 1, kind())
        if stage == "test" and trainer.is_global_zero and self._speaks:
            for logger in trainer.loggers:
                self._cleanup.enter_context(summarise_tests(logger))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Describe the run to W&B, unless the command line does so, which knows every setting."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        owner = _orchestrator(trainer)
        if not trainer.is_global_zero or owner is None or any(getattr(c, "describes_runs", False) for c in callbacks):
            return
        data: Any = getattr(trainer, "datamodule", None)
        settings = run_settings(owner.settings, data)
        for logger in trainer.loggers:
            describe_run(logger, settings, str(getattr(data, "origin", "")))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print the results and where the files are, on the first rank."""
        self._cleanup.close()
        if not trainer.is_global_zero or not self._speaks or stage not in ("fit", "test"):
            return
        if stage == "fit":
            owner = _orchestrator(trainer)
            print("\n".join(final_summary(trainer, federated=owner is not None and owner.enabled)))
            if owner is None:
                print("No federation was trained: the callbacks lack a FederatedOrchestrator.")
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        for line in filter(None, map(where_to_look, trainer.loggers)):
            print(line)
        for logger in trainer.loggers:
            require_space(logger)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the loggers: Lightning calls no ``teardown`` after an error."""
        self._cleanup.close()


def _orchestrator(trainer: Trainer) -> FederatedOrchestrator | None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((callback for callback in callbacks if isinstance(callback, FederatedOrchestrator)), None)
