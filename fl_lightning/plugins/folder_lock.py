"""One run at a time in a folder."""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fl_lightning.errors import ConfigurationError

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)
_HELD: set[IO[str]] = set()

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[str]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def lock_folder(folder: Path, what: str = "run", setting: str = "trainer.default_root_dir") -> Iterator[bool]:
    """Keep a second process out of a folder for the time of a block.

    The system holds the lock for this process: it ends with it, however it ends, also by SIGKILL. Processes that this one
    forks do not keep it.

    Args:
        folder: made if need be.
        what: is at work there, in words.
        setting: names the folder.

    Returns:
        Whether the folder is locked: not on a file system without locks, which is a warning.

    Raises:
        ConfigurationError: if another process is at work there, or the folder cannot be written.
    """
    path, owner = folder / ".lock", os.getpid()
    try:
        file, locked = _take(path, what, setting)
    except OSError as error:
        raise ConfigurationError(
            f"'{setting}' is '{folder}', which cannot be written ({error.strerror}). Set it to a folder that can."
        ) from error
    _HELD.add(file)
    try:
        yield locked
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # such as Windows's, which deletes no open file
                path.unlink()
            _HELD.discard(file)
            file.close()


def _take(path: Path, what: str, setting: str) -> tuple[IO[str], bool]:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            _lock(file)
        except OSError as error:
            if error.errno in _BUSY:
                raise _at_work(file, path.parent, what, setting) from None
            said = f"'{path.parent}' is on a file system without locks ({error.strerror}): nothing keeps another {what} out."
            warnings.warn(said, stacklevel=4)
            return file, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
                return file, True
        file.close()  # whoever held it has deleted it meanwhile


def _at_work(file: IO[str], folder: Path, what: str, setting: str) -> ConfigurationError:
    """Return the error for a folder that is in use."""
    holder = ""
    with file, suppress(OSError):  # Windows reads no locked file
        file.seek(0)
        holder = file.read().strip()
    return ConfigurationError(
        f"Another {what} is at work in '{folder}'{f' ({holder})' if holder else ''}. Wait for it, end it, or set "
        f"'{setting}' to another folder."
    )


def _let_go() -> None:
    """Close in a forked process what its parent holds: the lock would live as long as the last of them."""
    for file in _HELD:
        file.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
