"""CSV files with rows of rounds, which grow while a federation runs and are whole again after a resume."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def forget_rounds(path: Path, first: int) -> None:
    """Take the rounds from ``first`` on out of a file, where there is one: a resumed run does them again.

    Args:
        path: of the file, whose first column is the round.
        first: from 0.
    """
    if not path.exists():
        return
    header, *rows = read_rows(path)
    kept = [row for row in rows if int(row[0]) < first]
    if not kept:  # what comes may have other columns
        path.unlink()
        return
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *kept])


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Add rows to a file, with a header where it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        csv.writer(file).writerows([columns, *rows] if new else rows)


def read_rows(path: Path) -> list[list[str]]:
    """Header and rows, as far as they are whole: a process that was killed may leave half a line."""
    with path.open(newline="") as file:
        text = file.read()
    header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines(keepends=True))) or [[]]
    return [header, *(row for row in rows if len(row) == len(header) and row[0].isdigit())]
