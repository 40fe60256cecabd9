"""The Trainer of the command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Literal, TypeVar

from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Metric

from fl_lightning.callbacks.federation_report import FederationReport
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.compat.lightning import has_whole_epoch
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.remote import clients_elsewhere
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import Part

T = TypeVar("T")


class FederationTrainer(Trainer):
    """Add commands that do not train to Lightning's Trainer, and remove a new run's folder if no round was completed."""

    makes_folder = False
    """Whether this run created its folder."""

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Fit as Lightning does; if the fit ends before the first round is complete, remove a folder that it created."""
        try:
            super().fit(*args, **kwargs)
        except Exception:
            if self.makes_folder and self.is_global_zero and not has_whole_epoch(self):
                if (wandb := sys.modules.get("wandb")) is not None and wandb.run is not None:
                    wandb.finish(exit_code=1)  # it would otherwise keep writing into the folder
                shutil.rmtree(self.default_root_dir, ignore_errors=True)
            raise

    def partition(self, model: LightningModule, datamodule: FederatedDataModule) -> None:
        """Show what each client would hold, without training.

        Args:
            model: not used.
            datamodule: datamodule to set up for a fit.
        """
        self._show(datamodule)

    def describe(self, model: LightningModule, datamodule: FederatedDataModule) -> None:
        """Show what each client would hold, and what its features are like, without training.

        Args:
            model: not used.
            datamodule: datamodule to set up for a fit.
        """
        self._show(datamodule, features=True)

    def privacy(self, model: LightningModule, datamodule: FederatedDataModule, layout: Literal["text", "csv"] = "text") -> None:
        """Show epsilon against rounds, cohort and noise, and the noise for an epsilon, without training.

        Args:
            model: not used.
            datamodule: datamodule to set up for a fit; only the clients' numbers of examples are read.
            layout: the layout of the table: text, or csv for programs.
        """
        from fl_lightning.cli.privacy_table import show_privacy

        datamodule.prepare_data()
        datamodule.setup("fit")
        show_privacy(self._only(FederatedOrchestrator), self, datamodule, layout == "csv")

    def evaluate(
        self,
        model: LightningModule,
        datamodule: FederatedDataModule,
        checkpoints: list[str] | None = None,
        metrics: list[Metric] | None = None,
        part: Part = "test",
        resamples: int = 1000,
        level: float = 0.95,
        min_examples: int = 1,
    ) -> None:
        """Evaluate every model at every client, without training; see docs/metrics.md.

        Args:
            model: the module.
            datamodule: its data.
            checkpoints: a checkpoint of the federation, by default the run's best, and checkpoints of other models.
            metrics: torchmetrics metrics.
            part: the part of each client's examples: test, validation or training.
            resamples: the number of bootstrap resamples behind an interval, from 0 to 10,000; 0 for no intervals.
            level: the share of the resamples' values within the interval, in (0, 1).
            min_examples: the fewest examples or persons behind a figure, a class and a point; sites have their own limit.
        """
        from fl_lightning.cli.evaluation import run_evaluation

        limits = {"part": part, "resamples": resamples, "level": level, "least": min_examples}
        run_evaluation(self, self._only(FederatedOrchestrator), model, datamodule, checkpoints or [], metrics or [], limits)

    def _show(self, datamodule: FederatedDataModule, features: bool = False) -> None:
        if clients_elsewhere(self):
            raise ConfigurationError(
                "'federation.pool' is set, so the clients' rows are at their sites. To see what they tell, set "
                "'federation_report.features' to true: a fit then asks the sites before round 0. Or remove 'federation.pool'."
            )
        datamodule.prepare_data()
        datamodule.setup("fit")
        root, report = Path(self.default_root_dir), self._only(FederationReport)
        holds_run = any((root / "checkpoints").glob("*.ckpt"))
        if holds_run:
            print(f"'{root}' contains a run, so its files are left unchanged.")
        folder = None if holds_run else root
        report.show_partition(datamodule, folder)
        if features or report.features:
            report.show_features(datamodule, folder)

    def _only(self, kind: type[T]) -> T:
        """Return the callback of a kind that every command has once."""
        (found,) = (callback for callback in self.callbacks if isinstance(callback, kind))  # type: ignore[attr-defined]
        return found
