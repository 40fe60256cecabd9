"""Count the examples of a stream in the first epoch of a client's turn."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities.data import extract_batch_size

from fl_lightning.data.own_loaders import is_stream, known_size


class StreamSize:
    """Count the examples that a stream yields, which its length, if it has one, may overstate.

    Args:
        trainer: the Trainer of the fit, or what stands in for it; None before a fit begins.

    Attributes:
        found: the number of examples; None if the length of the dataset holds.
    """

    def __init__(self, trainer: Any = None) -> None:
        loader = None if trainer is None else trainer.train_dataloader
        self._counts = is_stream(loader)
        self._nominal = known_size(loader) if self._counts else None
        self._read = self._batches = 0
        self.found: int | None = 0 if self._counts and self._nominal is None else None

    def count(self, batch: Any) -> None:
        """Count a batch of the first epoch."""
        if self._counts:
            self._read += extract_batch_size(batch)
            self._batches += 1
            if self._nominal is None:
                self.found = self._read

    def end_epoch(self, trainer: Any) -> None:
        """Take the number of examples that were read, if the stream has ended by itself."""
        if not self._counts or self._nominal is None:
            return
        planned = trainer.num_training_batches
        ended = self._batches < planned and not trainer.should_stop
        whole = self._batches == planned >= len(trainer.train_dataloader)
        if ended or whole:
            self.found = self._read
