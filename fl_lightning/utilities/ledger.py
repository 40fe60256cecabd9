"""Append lines of JSON to a file, each on the disk before what it accounts for happens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock

from fl_lightning.errors import FederationError
from fl_lightning.utilities.atomic_file import sync_folder

T = TypeVar("T")


@dataclass(frozen=True)
class Ledger(Generic[T]):
    """Read and write a file that only grows.

    A last line that a kill cut off is dropped: it was not on the disk yet, so what it accounts for did not happen. One that is
    whole, but lacks its end, counts.

    Args:
        path: the file.
        parse: returns the entry of a line's values; raises KeyError, TypeError or ValueError if it has none.
        error: the kind of the errors.
        fix: what to do about a damaged line, as a sentence.
        creates: whether to create a missing file, which otherwise is an error.
    """

    path: Path
    parse: Callable[[dict[str, Any]], T]
    error: type[FederationError]
    fix: str
    creates: bool = False

    def read(self) -> list[T]:
        """Return all entries in order.

        Raises:
            FederationError: if the file cannot be read, or a line is damaged.
        """
        with self._usable():
            return self._entries(b"" if self.creates and not self.path.exists() else self.path.read_bytes())

    def append(self, entry: Mapping[str, Any], check: Callable[[list[T]], None] | None = None) -> None:
        """Write an entry, and wait until it is on the disk.

        Args:
            entry: its values.
            check: is given the entries before while no other process appends one, and raises an error to write none.

        Raises:
            FederationError: if it cannot be written; then what it accounts for must not happen.
        """
        with self._usable():
            if self.creates:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(check is not None), open(self.path, "a+b" if self.creates else "r+b") as file:
                file.seek(0)
                known = file.read()
                if check is not None:
                    check(self._entries(known))
                whole = _whole(known)
                if len(whole) < len(known):
                    file.truncate(file.seek(len(whole)))
                file.write(whole[len(known) :] + json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)

    @contextmanager
    def _alone(self, needed: bool) -> Iterator[None]:
        """Keep other processes out while a block runs; unless it is needed, also where a file system has no locks."""
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        try:
            lock.acquire()
        except OSError:
            if needed:
                raise
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"The ledger '{self.path}' cannot be used ({error.strerror}), and nothing is released without a line in it"
            raise self.error(f"{why}. Free disk space, or make the file and its folder writable.") from error

    def _entries(self, content: bytes) -> list[T]:
        found = []
        for number, line in enumerate(_whole(content).splitlines(), 1):
            try:
                found.append(self.parse(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                why = f"Line {number} of the ledger '{self.path}' is damaged, so what was spent is not known"
                raise self.error(f"{why}. {self.fix}") from error
        return found


def _whole(content: bytes) -> bytes:
    """Return the lines without a last one that a kill cut off; if only its end is missing, with that."""
    end = content.rfind(b"\n") + 1
    try:
        return content + b"\n" if isinstance(json.loads(content[end:]), dict) else content[:end]
    except ValueError:
        return content[:end]
