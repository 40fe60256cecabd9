"""Keep the pieces of models that pass through a SuperLink in files beside its database.

SQLite writes a piece to its log, from there to the database, and the same way again when it overwrites the piece; meanwhile,
other writers wait. Upstream: we know of no issue.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LARGE = 2**17
"""The bytes from which a content is in a file."""
_NAME = re.compile("[0-9a-f]{64}")
_IN_FILE = b"fl-lightning: in a file, bytes: "
"""What stands for a content in the database. A content of Flower begins with the name of its type and has a byte 0."""


def contents_of(database: Path) -> Path:
    """Return the folder with the contents of a database's objects."""
    return database.with_name("contents")


@functools.cache
def keep_contents_in_files(folder: Path) -> None:
    """Let the object store of this process keep large contents in files of a folder, each with its object's id as its name."""
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore

    folder.mkdir(mode=0o700, exist_ok=True)
    store: Any = SqlObjectStore
    store.put, store.get = putting(store.put, folder), getting(store.get, folder)


def putting(put: Callable[..., None], folder: Path) -> Callable[..., None]:
    """Return a way to store a content whose file exists exactly if its row says so.

    Args:
        put: ``SqlObjectStore.put``.
        folder: the folder of the files.
    """
    from flwr.supercore.inflatable.inflatable_object import get_object_id
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content

    def stored(store: Any, object_id: str, object_content: bytes) -> None:
        if len(object_content) < LARGE or not _NAME.fullmatch(object_id):
            put(store, object_id, object_content)
            return
        if store.verify:
            if get_object_id(object_content) != object_id:
                raise ValueError(f"Object ID {object_id} does not match content hash")
            validate_object_content(content=object_content)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            written = Path(file.name)
            try:
                file.write(object_content)
                file.flush()
                with store.session():  # nothing deletes files during a transaction
                    unchecked = SimpleNamespace(session=store.session, verify=False)
                    put(unchecked, object_id, _IN_FILE + str(len(object_content)).encode())
                    written.replace(folder / object_id)
            except BaseException:
                written.unlink(missing_ok=True)
                raise

    return stored


def getting(get: Callable[..., bytes | None], folder: Path) -> Callable[..., bytes | None]:
    """Return a way to read a content; it is missing if its file is, or has another length.

    Args:
        get: ``SqlObjectStore.get``.
        folder: the folder of the files.
    """

    def found(store: Any, object_id: str) -> bytes | None:
        content = get(store, object_id)
        if content is None or not content.startswith(_IN_FILE):
            return content
        with suppress(FileNotFoundError):
            read = (folder / object_id).read_bytes()
            if len(read) == int(content.removeprefix(_IN_FILE)):
                return read
        return None

    return found
