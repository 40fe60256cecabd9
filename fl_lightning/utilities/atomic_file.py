"""Write files so that a kill, a crash or a full disk leaves the former content or the new one, complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

PARTIAL = ".{name}.{process}.partial"
"""The name of a file while it is written; other processes write under other names."""


def write_whole(target: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a file next to its target, sync it to the disk, and rename it; create its folder if necessary.

    Raises:
        OSError: if it cannot be written; the former file is unchanged.
    """
    fill_whole(target, lambda file: file.write(content))


def fill_whole(target: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Let a function write a file as :func:`write_whole` does.

    Args:
        target: the file.
        fill: writes the content to the open file.

    Raises:
        OSError: if it cannot be written; the former file is unchanged.
    """
    unfinished = target.with_name(PARTIAL.format(name=target.name, process=os.getpid()))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(unfinished, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new name in it reaches the disk."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
