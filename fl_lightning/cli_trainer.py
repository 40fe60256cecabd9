"""The Trainer of the command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.callbacks.partition_report import PartitionReport
from fl_lightning.compat.lightning import has_whole_epoch
from fl_lightning.data.federated import FederatedDataModule


class FederationTrainer(Trainer):
    """Lightning's Trainer, with what the command ``partition`` calls; a fit without a whole round leaves no folder behind."""

    makes_folder = False
    """Whether the run's folder was not there before."""

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """See Lightning; where it ends before the first round is complete, a new folder goes again."""
        try:
            super().fit(*args, **kwargs)
        except Exception:
            if self.makes_folder and self.is_global_zero and not has_whole_epoch(self):
                _finish_wandb()
                shutil.rmtree(self.default_root_dir, ignore_errors=True)
            raise

    def partition(self, model: LightningModule, datamodule: FederatedDataModule) -> None:
        """Show what each client would hold, without training.

        Args:
            model: not used.
            datamodule: is set up for a fit.
        """
        (report,) = (callback for callback in self.callbacks if isinstance(callback, PartitionReport))  # type: ignore[attr-defined]
        datamodule.prepare_data()
        datamodule.setup("fit")
        folder = Path(self.default_root_dir)
        if any((folder / "checkpoints").glob("*.ckpt")):
            print(f"'{folder}' holds a run: its files are left as they are.")
            report.show(datamodule, None)
        else:
            report.show(datamodule, folder)


def _finish_wandb() -> None:
    """Else it would write on into the folder."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish(exit_code=1)
