"""A lock that allows one run at a time in a folder."""

from __future__ import annotations

import errno
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fl_lightning.errors import ConfigurationError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
    lock = FileLock(path, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        path.write_text(f"process {owner} on {socket.gethostname()}", encoding="utf-8")
    except Timeout:
        holder = ""
        with suppress(OSError):  # Windows cannot read a locked file
            holder = f" ({path.read_text(encoding='utf-8').strip()})"
        raise ConfigurationError(
            f"Another {what} is using '{folder}'{holder}. Wait until it has finished, stop it, or set '{setting}' to another "
            "folder."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise ConfigurationError(
                f"'{setting}' is '{folder}', which is not writable ({error.strerror}). Set it to a writable folder."
            ) from error
        said = f"'{folder}' is on a file system without locks ({error.strerror}): nothing keeps another {what} out."
        warnings.warn(said, stacklevel=3)
    try:
        yield lock.is_locked
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # Windows cannot delete an open file
                path.unlink()
            lock.release()
