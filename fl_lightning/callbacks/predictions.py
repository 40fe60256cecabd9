"""A file of what ``predict`` computes."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.collectives import Collectives

_NAME = re.compile(r"predictions(?:-(\d+))?-rank\d+\.pt")


class PredictionFile(BasePredictionWriter):
    """Write the predictions of ``predict`` to ``<default_root_dir>/predictions-rank<r>.pt``, one tensor per batch.

    Existing files are kept: later ones are ``predictions-2-rank<r>.pt``, ``predictions-3-rank<r>.pt`` and so on, with the same
    number on every rank. The file is created before the first batch, so that a folder that is not writable is reported at once.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")
        self._path: Path | None = None

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the file.

        Raises:
            ConfigurationError: if the file cannot be created.
        """
        folder = Path(trainer.default_root_dir)
        number: int = trainer.strategy.broadcast(_next_number(folder))
        path = folder / f"predictions{f'-{number}' if number > 1 else ''}-rank{trainer.global_rank}.pt"
        failure: Exception | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
            self._path = path
        except OSError as error:
            failure = ConfigurationError(
                f"Cannot write the predictions to '{path}' ({error.strerror}). Set 'trainer.default_root_dir' to a writable "
                "folder."
            )
        Collectives(trainer).gather_or_raise(None, failure)

    def write_on_epoch_end(self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any) -> None:
        """Write the file and print its path."""
        assert self._path is not None
        content = io.BytesIO()
        torch.save(predictions, content)
        write_whole(self._path, content.getbuffer())
        print(f"Predictions: {self._path}")
        self._path = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the file if it is empty."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _next_number(folder: Path) -> int:
    """Return the next free number of the folder's files; the first file has no number."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("predictions*.pt"))
    return 1 + max((int(match[1] or 1) for match in found if match), default=0)
