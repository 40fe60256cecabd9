"""Write files that other accounts cannot read, or that a crash leaves whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this account can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content at once, so that a crash leaves the old or the new one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")  # another process may write the same file
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
