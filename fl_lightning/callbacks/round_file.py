"""CSV files with rows per round, which grow while a federation runs and stay consistent after a resume."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import write_rows


def forget_rounds(path: Path, first: int) -> None:
    """Remove the rounds from ``first`` on from a file, if it exists: a resumed run repeats them.

    Args:
        path: CSV file whose first column is the round.
        first: first round to remove, from 0.
    """
    if not path.exists():
        return
    header, *rows = read_rows(path)
    kept = [row for row in rows if int(row[0]) < first]
    if not kept:  # the new rows may have other columns
        path.unlink()
        return
    text = io.StringIO(newline="")
    write_rows(text, [header, *kept])
    write_whole(path, text.getvalue().encode())


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Append rows to a file, with a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        write_rows(file, [columns, *rows] if new else rows)


def read_rows(path: Path) -> list[list[str]]:
    """Return the header and all complete rows; a killed process may leave half a line."""
    with path.open(newline="", encoding="utf-8") as file:
        text = file.read()
    header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines(keepends=True))) or [[]]
    return [header, *(row for row in rows if len(row) == len(header) and row[0].isdigit())]


def client_name(trainer: Trainer, client: int) -> str:
    """Return the name of a client for a file: its number if it has none."""
    data = getattr(trainer, "datamodule", None)
    return data.client_name(client) if isinstance(data, FederatedDataModule) else str(client)
