"""Keep nothing of sites' updates on the server's disk longer than a round needs it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

_PERIOD = 5.0
"""The seconds between two sweeps."""
_PATIENCE = 1.0
"""The seconds for which a sweep waits for the SuperLink to end a transaction."""
_PAGES = 500
"""The pages of 16 kB that one transaction returns: the SuperLink cannot write meanwhile, and sites wait for its answer."""


def sweep(database: Path, unused: int | None = None) -> int:
    """Empty the write-ahead log, in which copies of deleted messages lie, and return unused pages to the file system.

    The SuperLink deletes a message when the fit has it, and SQLite overwrites what is deleted (``secure_delete``). While
    messages come and go, the next ones take the pages of the last ones, so only a federation at rest returns them.

    Args:
        database: the SuperLink's database.
        unused: the pages that were unused at the sweep before; if there are now more or fewer, none is returned. None: all are.

    Returns:
        The pages that were unused when the sweep began.
    """
    with closing(sqlite3.connect(database, timeout=_PATIENCE)) as connection:
        if not connection.execute("PRAGMA auto_vacuum").fetchone()[0]:  # a database of an earlier version
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
        connection.execute("PRAGMA secure_delete = ON")
        found = _free_pages(connection)
        while unused in (None, found) and _free_pages(connection):
            connection.executescript(f"PRAGMA incremental_vacuum({_PAGES});")  # ``execute`` would stop after the first page
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # without keeping writers waiting
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return found


def _free_pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


class Sweeper:
    """Sweep a database now and then while it is in use, and at the end.

    Args:
        database: its file.
    """

    def __init__(self, database: Path) -> None:
        self._database, self._end = database, threading.Event()
        self._unused: int | None = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(_PERIOD):
            self._try()

    def _try(self) -> None:
        try:
            if self._database.exists():
                self._unused = sweep(self._database, self._unused)
        except sqlite3.OperationalError:  # the SuperLink writes now; the next sweep comes soon
            return

    def close(self) -> None:
        """Stop, after a last sweep."""
        self._end.set()
        self._thread.join(10)
        self._unused = None
        self._try()
