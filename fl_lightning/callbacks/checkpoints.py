"""The two checkpoints of a federation: its best round and its last round."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.callbacks.stopping import requeued
from fl_lightning.compat.lightning import FindsLastCheckpoint
from fl_lightning.errors import CheckpointError, ConfigurationError, require_counts
from fl_lightning.functional.metric_mode import higher_is_better, known_direction
from fl_lightning.utilities.argument_types import ChecksTypes


class _InTheRunsFolder(ChecksTypes, FindsLastCheckpoint):
    """Save into a fixed folder that a later process can find; by default, Lightning makes a new folder for each run."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the folder."""
        self.dirpath = self.dirpath or str(Path(trainer.default_root_dir).absolute() / "checkpoints")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")  # expected when a run resumes
            super().setup(trainer, pl_module, stage)

    def find_last(self, trainer: Trainer) -> set[str]:
        """Look for checkpoints in the folder."""
        self.dirpath = self.dirpath or str(Path(trainer.default_root_dir).absolute() / "checkpoints")
        return super().find_last(trainer)


class BestCheckpoint(_InTheRunsFolder):
    """Keep the best round by a metric, as ``best.ckpt``.

    Args:
        monitor: name of a metric that the module logs in validation.
        mode: ``max`` if higher is better, ``min`` if lower is; by default, what the name of the metric implies: see
            :func:`~fl_lightning.functional.metric_mode.known_direction`.
        dirpath: folder of the checkpoint; ``<default_root_dir>/checkpoints`` by default.

    Raises:
        ConfigurationError: if neither ``mode`` nor the name of the metric says which direction is better.
    """

    def __init__(
        self, monitor: str = "val_accuracy", mode: Literal["max", "min"] | None = None, dirpath: str | None = None
    ) -> None:
        higher = higher_is_better(monitor, mode, "best_checkpoint.mode")
        if known_direction(monitor) not in (None, higher):
            rank_zero_warn(
                f"'best_checkpoint.mode' is {mode}, but {'lower' if higher else 'higher'} values of '{monitor}' are better by "
                f"its name, so best.ckpt would be the worst round. Set it to {'min' if higher else 'max'}, or to null."
            )
        mode = "max" if higher else "min"
        super().__init__(dirpath, filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell that no round will be the best where nothing can be validated."""
        if not trainer.enable_validation and trainer.limit_val_batches and is_overridden("validation_step", pl_module):
            rank_zero_warn(
                "There are no examples to validate on, so no metric is logged, and only last.ckpt is written. Give the "
                "datamodule a validation or test set (for tables and folders 'data.datamodule.test_share'), or let clients "
                "hold one: 'data.client_test' with 'data.server_set' clients."
            )
        super().on_train_start(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the score of the best round, also if the run's folder has been moved or copied with its ``best.ckpt``."""
        before, here = state_dict.get("dirpath"), str(self.dirpath)
        if before != here and self._holds_best_of(state_dict, Path(here) / "best.ckpt"):
            state_dict = _renamed(state_dict, str(before), here)
        super().load_state_dict(state_dict)

    def _holds_best_of(self, state: dict[str, Any], path: Path) -> bool:
        """Return whether a file is the best checkpoint of the run that a state comes from."""
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)["callbacks"][self.state_key]
            return bool(torch.equal(held["best_model_score"], state["best_model_score"].cpu()))
        except Exception:  # no such file, or one that this run cannot read
            return False


def _renamed(state: Any, before: str, now: str) -> Any:
    """Return a state with other paths."""
    if isinstance(state, dict):
        return {_renamed(key, before, now): _renamed(value, before, now) for key, value in state.items()}
    return now + state.removeprefix(before) if isinstance(state, str) and state.startswith(before) else state


class LastCheckpoint(_InTheRunsFolder):
    """Save ``last.ckpt`` after every round. ``ckpt_path="last"`` resumes from it, or from ``best.ckpt`` if it does not exist.

    Args:
        dirpath: folder of the checkpoint; ``<default_root_dir>/checkpoints`` by default.
        every_n_rounds: number of rounds between two checkpoints, >= 1.

    Raises:
        CheckpointError: by ``fit(ckpt_path="last")`` if there is no checkpoint; Lightning would warn and start again.
    """

    def __init__(self, dirpath: str | None = None, every_n_rounds: int = 1) -> None:
        require_counts("last_checkpoint.", every_n_rounds=every_n_rounds)
        super().__init__(
            dirpath,
            filename="last",
            every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, with the folder of this run."""
        super().load_state_dict(_renamed(state_dict, str(state_dict.get("dirpath")), str(self.dirpath)))

    def find_last(self, trainer: Trainer) -> set[str]:
        """Return the last round's checkpoint, or the best one if there is no last.

        Raises:
            CheckpointError: if there is neither.
        """
        found = super().find_last(trainer)
        best = Path(str(self.dirpath)) / "best.ckpt"
        if not found and best.exists():  # killed in the first round, after saving the best and before saving the last
            return {str(best)}
        if not found:
            raise nothing_to_resume(str(self.dirpath))
        return found


def nothing_to_resume(folder: str) -> CheckpointError:
    """Return the error for ``ckpt_path="last"`` without a checkpoint."""
    return CheckpointError(
        f"'ckpt_path' is 'last', but '{folder}' has no checkpoint to resume from. Remove 'ckpt_path' to start a new run, or "
        "set 'trainer.default_root_dir' to the folder of the run."
    )


def choose_checkpoint(config: Namespace, command: str, tell: bool) -> None:
    """Set ``ckpt_path`` to the run's best checkpoint if it is ``best``, or if an evaluation has none; resume a requeued fit.

    Args:
        config: configuration of a subcommand.
        command: ``fit``, ``validate``, ``test`` or ``predict``; other commands read no checkpoint.
        tell: whether to print the choice.

    Raises:
        ConfigurationError: if there is no checkpoint; otherwise the command would silently evaluate random weights.
    """
    evaluates = command in ("validate", "test", "predict")
    given = config.get("ckpt_path")
    if command == "fit" and not given and requeued() and any(Path(config.last_checkpoint.dirpath).glob("*.ckpt")):
        config.ckpt_path = "last"
        if tell:
            print("SLURM has started this job again: it resumes from its last checkpoint.")
        return
    if given != "best" and (given or not evaluates):
        return
    best = Path(config.best_checkpoint.dirpath) / "best.ckpt"
    last = Path(config.last_checkpoint.dirpath) / "last.ckpt"
    if best.exists():
        config.ckpt_path = str(best)
        if tell and not given:
            print(f"Checkpoint: {best}, the best of the run. Use '--ckpt_path' to choose another.")
        return
    other = f"'--ckpt_path {last}', the last round" if last.exists() else "'--ckpt_path'"
    raise ConfigurationError(
        f"'{command}' needs a trained model, but there is no '{best}'. Name a checkpoint by {other}, set "
        "'trainer.default_root_dir' to the folder of a run, or run 'fit' first."
    )
