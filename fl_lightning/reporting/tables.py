"""Tables and matrices to loggers that can show them, and to the terminal."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor

_MOST_CLASSES = 100
"""Of a matrix that is written as a file after each round."""


def log_matrix(trainer: Trainer, name: str, matrix: Tensor) -> None:
    """Send a C x C matrix as a table to W&B, with its round: rows true, columns predicted.

    Beside the file of a CSV logger the last one is kept as ``<name>.csv``, up to 100 classes. Nothing is sent from the sanity
    check, nor from ranks other than the first.
    """
    rows = [[true, *counts] for true, counts in enumerate(matrix.tolist())]
    columns = ["true", *(f"predicted {c}" for c in range(len(rows)))]
    log_table(trainer, name, columns, rows)
    if trainer.is_global_zero and not trainer.sanity_checking and len(rows) <= _MOST_CLASSES:
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                folder = Path(logger.log_dir)
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / f"{name}.csv").open("w", newline="") as file:
                    csv.writer(file).writerows([columns, *rows])


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
