"""Tables and matrices for the loggers that can show them, and for the terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor

from fl_lightning.reporting.matrices import draw_confusion
from fl_lightning.utilities.csv_file import write_csv

_MOST_CLASSES = 100
"""Largest number of rows of a matrix that is written to a file after each round."""


def write_matrix(trainer: Trainer, name: str, matrix: Tensor, names: Sequence[str] | None = None) -> None:
    """Write a matrix of shape (C, C) as ``<name>.csv`` next to the file of each CSV logger, replacing the previous one.

    It has up to 100 rows; the sanity check and ranks other than the first write nothing.

    Args:
        trainer: Trainer with the loggers.
        name: name of the file.
        matrix: counts of a confusion matrix, or any matrix of clients.
        names: names of rows and columns if they are clients; by default they are true and predicted classes.
    """
    if trainer.is_global_zero and not trainer.sanity_checking and len(matrix) <= _MOST_CLASSES:
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                write_csv(Path(logger.log_dir) / f"{name}.csv", *_labelled(matrix, names))


def log_matrix(trainer: Trainer, name: str, matrix: Tensor, round_idx: int | None = None) -> None:
    """Send a confusion matrix of shape (C, C) to W&B as a table and, with matplotlib, as a picture ``<name>_picture``.

    Args:
        trainer: Trainer with the loggers; only the first rank sends.
        name: name of the table.
        matrix: counts, rows true, columns predicted.
        round_idx: index of its round; the current one by default.
    """
    if trainer.is_global_zero and any(isinstance(logger, WandbLogger) and not _is_off(logger) for logger in trainer.loggers):
        drawn = draw_confusion(matrix)
        header, rows = _labelled(matrix)
        log_table(trainer, name, header, rows, round_idx, **({f"{name}_picture": drawn} if drawn else {}))


def _is_off(logger: WandbLogger) -> bool:
    """Return whether W&B records nothing, as with ``WANDB_MODE=disabled``."""
    return bool(getattr(logger.experiment, "disabled", False))


def _labelled(matrix: Tensor, names: Sequence[str] | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return the header and the rows of a matrix of clients, or of true and predicted classes."""
    header = ["client", *names] if names else ["true", *(f"predicted {c}" for c in range(len(matrix)))]
    return header, [[name, *row] for name, row in zip(names or range(len(matrix)), matrix.tolist(), strict=True)]


def log_table(
    trainer: Trainer,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    round_idx: int | None = None,
    **pictures: bytes,
) -> None:
    """Send a table to W&B with its round; the sanity check and ranks other than the first send nothing.

    Args:
        trainer: Trainer with the loggers.
        name: name of the table.
        columns: names of the columns.
        rows: rows with one cell per column.
        round_idx: index of its round; the current one by default.
        pictures: PNG files to send with it, by name.
    """
    if trainer.is_global_zero and not trainer.sanity_checking:
        log_values(trainer, {name: (columns, rows), **pictures}, trainer.current_epoch if round_idx is None else round_idx)


def log_values(trainer: Trainer, values: Mapping[str, bytes | tuple[Sequence[str], Sequence[Any]]], round_idx: int) -> None:
    """Send PNG files and tables, as columns and rows, to W&B with their round; call this on the first rank."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            import wandb  # slow to import, and not every run uses it
            from PIL import Image

            sent: dict[str, Any] = {"round": float(round_idx)}
            for name, own in values.items():
                if isinstance(own, bytes):
                    sent[name] = wandb.Image(Image.open(io.BytesIO(own)))
                else:
                    sent[name] = wandb.Table(columns=list(own[0]), data=list(map(list, own[1])))
            logger.log_metrics(sent)


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table for the terminal, with the first column aligned left and the others right."""
    cells = [[_cell(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    lines = []
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]))
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
