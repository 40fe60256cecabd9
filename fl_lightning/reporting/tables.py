"""Tables and matrices to loggers that can show them, and to the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from fl_lightning.reporting.matrices import draw_confusion

_MOST_CLASSES = 100
"""Of a matrix that is written as a file after each round."""


def log_matrix(trainer: Trainer, name: str, matrix: Tensor) -> None:
    """Send a confusion matrix of shape (C, C) as a table to W&B, with its round: rows true, columns predicted.

    The last of ``max_epochs`` rounds sends a picture, too, ``<name>_picture``. Beside the file of a CSV logger the last matrix
    is kept as ``<name>.csv``, up to 100 classes. Nothing is sent from the sanity check, nor from ranks other than the first.
    """
    rows = [[true, *counts] for true, counts in enumerate(matrix.tolist())]
    columns = ["true", *(f"predicted {c}" for c in range(len(rows)))]
    log_table(trainer, name, columns, rows, **_picture(trainer, name, matrix))
    if trainer.is_global_zero and not trainer.sanity_checking and len(rows) <= _MOST_CLASSES:
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                folder = Path(logger.log_dir)
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / f"{name}.csv").open("w", newline="") as file:
                    csv.writer(file).writerows([columns, *rows])


def _picture(trainer: Trainer, name: str, matrix: Tensor) -> dict[str, Any]:
    """At the end of a fit, for W&B."""
    last = trainer.state.fn == TrainerFn.FITTING and trainer.current_epoch + 1 == trainer.max_epochs
    wanted = any(isinstance(logger, WandbLogger) for logger in trainer.loggers)
    drawn = draw_confusion(matrix) if last and wanted and trainer.is_global_zero else None
    if drawn is None:
        return {}
    import wandb  # slow, and not everyone logs to it
    from PIL import Image

    return {f"{name}_picture": wandb.Image(Image.open(io.BytesIO(drawn)))}


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
