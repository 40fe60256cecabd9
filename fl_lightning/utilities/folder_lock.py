"""A lock that allows one run at a time in a folder."""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fl_lightning.errors import ConfigurationError

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)
_HELD: set[IO[str]] = set()

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[str]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _wait(file: IO[Any]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

    def _free(file: IO[Any]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _wait(file: IO[Any]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _free(file: IO[Any]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def waiting_for(file: IO[Any], needed: bool = True) -> Iterator[None]:
    """Keep other processes out of an open file while a block runs, after waiting for them.

    Args:
        file: the file.
        needed: whether a file system without locks is an error.
    """
    try:
        _wait(file)
    except OSError:
        if needed:
            raise
    try:
        yield
    finally:
        with suppress(OSError):
            _free(file)


@contextmanager
def lock_folder(folder: Path, what: str = "run", setting: str = "trainer.default_root_dir") -> Iterator[bool]:
    """Keep other processes out of a folder while a block runs.

    The operating system holds the lock for this process and releases it when the process ends in any way, including SIGKILL.
    Forked child processes do not keep the lock.

    Args:
        folder: folder to lock; created if it does not exist.
        what: what runs in the folder, for messages.
        setting: setting that names the folder, for messages.

    Returns:
        Whether the folder is locked. On a file system without locks it is not, and a warning says so.

    Raises:
        ConfigurationError: if another process uses the folder, or the folder is not writable.
    """
    path, owner = folder / ".lock", os.getpid()
    try:
        file, locked = _take(path, what, setting)
    except OSError as error:
        raise ConfigurationError(
            f"'{setting}' is '{folder}', which is not writable ({error.strerror}). Set it to a writable folder."
        ) from error
    _HELD.add(file)
    try:
        yield locked
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # Windows cannot delete an open file
                path.unlink()
            _HELD.discard(file)
            file.close()


def _take(path: Path, what: str, setting: str) -> tuple[IO[str], bool]:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
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
        file.close()  # the previous holder deleted the file in the meantime


def _at_work(file: IO[str], folder: Path, what: str, setting: str) -> ConfigurationError:
    """Return the error for a folder that another process uses."""
    holder = ""
    with file, suppress(OSError):  # Windows cannot read a locked file
        file.seek(0)
        holder = file.read().strip()
    return ConfigurationError(
        f"Another {what} is using '{folder}'{f' ({holder})' if holder else ''}. Wait until it has finished, stop it, or set "
        f"'{setting}' to another folder."
    )


def _let_go() -> None:
    """Close the parent's locks in a forked process; otherwise the locks would last as long as any child."""
    for file in _HELD:
        file.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
