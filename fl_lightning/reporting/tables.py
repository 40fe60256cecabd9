"""Tables and matrices to loggers that can show them, and to the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor

from fl_lightning.reporting.matrices import draw_confusion

_MOST_CLASSES = 100
"""Of a matrix that is written as a file after each round."""


def write_matrix(trainer: Trainer, name: str, matrix: Tensor, names: Sequence[str] | None = None) -> None:
    """Keep a matrix of shape (C, C) as ``<name>.csv`` beside the file of each CSV logger, in place of the last one.

    Up to 100 rows; not from the sanity check, nor from ranks other than the first.

    Args:
        trainer: whose loggers.
        name: of the file.
        matrix: counts of a confusion matrix, or anything about clients.
        names: of rows and columns, where they are clients; else they are true and predicted classes.
    """
    if trainer.is_global_zero and not trainer.sanity_checking and len(matrix) <= _MOST_CLASSES:
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                folder = Path(logger.log_dir)
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / f"{name}.csv").open("w", newline="") as file:
                    csv.writer(file).writerows([_columns(matrix), *_rows(matrix)] if names is None else _named(matrix, names))


def log_matrix(trainer: Trainer, name: str, matrix: Tensor, round_idx: int | None = None) -> None:
    """Send a confusion matrix of shape (C, C) to W&B: a table, and with matplotlib a picture, ``<name>_picture``.

    Args:
        trainer: whose loggers get it, on the first rank.
        name: its name there.
        matrix: counts, rows true, columns predicted.
        round_idx: its round; the current one by default.
    """
    if trainer.is_global_zero and any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb  # slow, and not everyone logs to it
        from PIL import Image

        drawn = draw_confusion(matrix)
        more = {} if drawn is None else {f"{name}_picture": wandb.Image(Image.open(io.BytesIO(drawn)))}
        log_table(trainer, name, _columns(matrix), _rows(matrix), round_idx, **more)


def _columns(matrix: Tensor) -> list[str]:
    return ["true", *(f"predicted {c}" for c in range(len(matrix)))]


def _rows(matrix: Tensor) -> list[list[int]]:
    return [[true, *counts] for true, counts in enumerate(matrix.tolist())]


def _named(matrix: Tensor, names: Sequence[str]) -> list[list[Any]]:
    return [["client", *names], *([name, *row] for name, row in zip(names, matrix.tolist(), strict=True))]


def log_table(
    trainer: Trainer,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    round_idx: int | None = None,
    **more: Any,
) -> None:
    """Send a table to W&B, with its round; not from the sanity check, nor from ranks other than the first.

    Args:
        trainer: whose loggers get it.
        name: its name there.
        columns: their names.
        rows: of as many cells.
        round_idx: its round; the current one by default.
        more: what else goes with it by name, such as an image.
    """
    if not trainer.is_global_zero or trainer.sanity_checking:
        return
    round_ = trainer.current_epoch if round_idx is None else round_idx
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            import wandb  # slow, and not everyone logs to it

            table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
            logger.log_metrics({name: table, **more, "round": float(round_)})  # type: ignore[dict-item]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for the terminal: the first column to the left, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    lines = []
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]))
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
