"""The two checkpoints of a federation: its best round, and its last."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.compat.lightning import FindsLastCheckpoint
from fl_lightning.errors import CheckpointError, ConfigurationError, did_you_mean
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.server.checks.metric_names import refuse_unknown_metrics


class _InTheRunsFolder(FindsLastCheckpoint):
    """In a fixed folder, so that a later process finds it: Lightning's own default is a new folder for each run."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the folder."""
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir).absolute() / "checkpoints")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")  # on a resume it should
            super().setup(trainer, pl_module, stage)

    def find_last(self, trainer: Trainer) -> set[str]:
        """Look into the folder."""
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir).absolute() / "checkpoints")
        return super().find_last(trainer)


class BestCheckpoint(_InTheRunsFolder):
    """Keeps the best round by a metric, as ``best.ckpt``.

    Args:
        monitor: a metric that the module logs in validation.
        mode: ``max`` if higher is better, ``min`` if lower is; by default what the name of the metric says: see
            :func:`~fl_lightning.functional.metric_mode.known_direction`.
        dirpath: folder; ``<default_root_dir>/checkpoints`` by default.

    Raises:
        ConfigurationError: without a mode where the name does not tell.
    """

    def __init__(
        self, monitor: str = "val_accuracy", mode: Literal["max", "min"] | None = None, dirpath: str | None = None
    ) -> None:
        mode = "max" if higher_is_better(monitor, mode, "best_checkpoint.mode") else "min"
        super().__init__(dirpath, filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for the metric before the first round."""
        refuse_unknown_metrics(trainer, pl_module, {"best_checkpoint.monitor": str(self.monitor)})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the model if it is the best.

        Raises:
            ConfigurationError: if the module does not log the metric.
        """
        logged = trainer.callback_metrics
        if trainer.state.fn is TrainerFn.FITTING and not trainer.sanity_checking and self.monitor not in logged:
            known = ", ".join(sorted(name for name in logged if name.startswith("val_"))) or "nothing in validation"
            raise ConfigurationError(
                f"'best_checkpoint.monitor' is '{self.monitor}', which {type(pl_module).__name__} does not log. It logs: "
                f"{known}. Set it to one of these; 'best_checkpoint.mode' says whether the max or the min is best."
                f"{did_you_mean(str(self.monitor), logged)}"
            )
        super().on_validation_end(trainer, pl_module)


class LastCheckpoint(_InTheRunsFolder):
    """Keeps every round's end, as ``last.ckpt``: what ``ckpt_path="last"`` goes on from; from ``best.ckpt`` where it is alone.

    Args:
        dirpath: folder; ``<default_root_dir>/checkpoints`` by default.
        every_n_rounds: how often, >= 1.

    Raises:
        CheckpointError: by ``fit(ckpt_path="last")`` where there is none; Lightning would start again with a warning.
    """

    def __init__(self, dirpath: str | None = None, every_n_rounds: int = 1) -> None:
        super().__init__(
            dirpath,
            filename="last",
            every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    def find_last(self, trainer: Trainer) -> set[str]:
        """Choose the best round where there is no last one.

        Raises:
            CheckpointError: where there is neither.
        """
        found = super().find_last(trainer)
        best = Path(str(self.dirpath)) / "best.ckpt"
        if not found and best.exists():  # killed in the first round, between the two
            return {str(best)}
        if not found:
            raise nothing_to_resume(str(self.dirpath))
        return found


def nothing_to_resume(folder: str) -> CheckpointError:
    """The error for ``ckpt_path="last"`` where there is no checkpoint."""
    return CheckpointError(
        f"'ckpt_path last' finds no checkpoint in '{folder}': there is nothing to go on from. Leave it out to start, or set "
        "'trainer.default_root_dir' to the folder of the run."
    )


def choose_checkpoint(config: Namespace, command: str, tell: bool) -> None:
    """Set ``ckpt_path`` to the best checkpoint of the run where it is ``best``, or none is given for an evaluation.

    Args:
        config: of a subcommand of the command line.
        command: ``fit``, ``validate``, ``test`` or ``predict``; others read no checkpoint.
        tell: whether to print the choice.

    Raises:
        ConfigurationError: if there is none; random weights would be evaluated without a word.
    """
    evaluates = command in ("validate", "test", "predict")
    given = config.get("ckpt_path")
    if given != "best" and (given or not evaluates):
        return
    best = Path(config.best_checkpoint.dirpath) / "best.ckpt"
    last = Path(config.last_checkpoint.dirpath) / "last.ckpt"
    if best.exists():
        config.ckpt_path = str(best)
        if tell and not given:
            print(f"Checkpoint: {best}, the best of the run; '--ckpt_path' takes another.")
        return
    if given:
        raise ConfigurationError(f"'ckpt_path best' finds no '{best}'. Give the path of a checkpoint, or fit first.")
    other = f"'--ckpt_path {last}', the last round" if last.exists() else "'--ckpt_path'"
    raise ConfigurationError(
        f"'{command}' needs a trained model, and there is no '{best}'. Name a checkpoint by {other}, set "
        "'trainer.default_root_dir' to the folder of a run, or fit first."
    )
