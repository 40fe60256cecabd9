"""Keep nothing of sites' updates on the server's disk longer than a round needs it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

_PERIOD = 5.0
"""The seconds between two sweeps."""
_PATIENCE = 1.0
"""The seconds for which a sweep waits for the SuperLink to end a transaction."""
_ID = 64
"""The length of an object's id."""
_PAGES = 2000
"""The pages of 4 kB that one transaction returns: the SuperLink cannot write meanwhile, and sites wait for its answer."""


def sweep(database: Path) -> None:
    """Empty the write-ahead log, in which copies of deleted messages lie, and return unused pages to the file system.

    The SuperLink deletes a message when the fit has it, and SQLite overwrites what is deleted (``secure_delete``).
    """
    with closing(sqlite3.connect(database, timeout=_PATIENCE)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        while connection.execute("PRAGMA freelist_count").fetchone()[0]:
            connection.executescript(f"PRAGMA incremental_vacuum({_PAGES});")  # ``execute`` would stop after the first page
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # without keeping writers waiting
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def drop_unnamed(database: Path, folder: Path, starts: bool = False) -> None:
    """Delete the files of objects that a database no longer has; the SuperLink cannot store an object meanwhile.

    Args:
        database: the SuperLink's database.
        folder: the files, each with its object's id as its name, or another name while it is written.
        starts: whether no SuperLink runs yet, so that one that was killed has left the files that are not complete.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return
    with closing(sqlite3.connect(database, timeout=_PATIENCE)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        named = {name for (name,) in connection.execute("SELECT object_id FROM objects")}
        for file in folder.iterdir():
            with suppress(FileNotFoundError):  # a file whose object was refused
                if file.name not in named and (starts or len(file.name) == _ID):
                    file.unlink()


class Sweeper:
    """Sweep a database before it is in use, now and then while it is, and at the end.

    Args:
        database: its file.
        contents: the folder with the contents of its objects.
    """

    def __init__(self, database: Path, contents: Path) -> None:
        self._database, self._contents, self._end = database, contents, threading.Event()
        self._try(starts=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(_PERIOD):
            self._try()

    def _try(self, starts: bool = False) -> None:
        try:
            if self._database.exists():
                drop_unnamed(self._database, self._contents, starts)
                sweep(self._database)
        except sqlite3.OperationalError:  # the SuperLink writes now; the next sweep comes soon
            return

    def close(self) -> None:
        """Stop, after a last sweep."""
        self._end.set()
        self._thread.join(10)
        self._try()
