"""Keep the schema that a server offers in the site's folder, as data: nothing in it is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl_lightning.data.schema_file import parse_schema, read_schema
from fl_lightning.errors import DataError, WireError
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.utilities.atomic_file import write_whole

_FILE = "server_schema.json"


def kept_schema(folder: Path) -> Path | None:
    """Return the file of the schema that a server has offered to the site with this folder; None before that."""
    path = folder / _FILE
    return path if path.exists() else None


def keep_schema(folder: Path, takes: bool, text: Any) -> Path | None:
    """Keep the schema that a server offers, and return its file; None without an offer.

    Args:
        folder: the site's folder.
        takes: whether the site's tables take the server's schema. They take the first one: a second one could ask for other
            columns of the same rows.
        text: what the server sent.

    Raises:
        WireError: if it is not a text.
        RefusedError: if it is not a schema, or another one than the site has taken.
    """
    if not isinstance(text, str):
        raise WireError("The server's schema is not a text.")
    path = folder / _FILE
    if not text:
        return kept_schema(folder) if takes else None
    try:
        schema = parse_schema(text, is_json=True)
    except DataError as error:
        raise RefusedError(f"The server's schema cannot be used: {error}") from error
    known = read_schema(path) if path.exists() else None
    if known is not None and known.digest() != schema.digest() and takes:
        raise RefusedError(
            f"The server offers the schema {schema.digest()}, but this site has taken {known.digest()} from it, and another "
            f"one could read other columns. If the site's staff agree, they delete '{path}'."
        )
    if known is None or known.digest() != schema.digest():
        write_whole(path, schema.text.encode())
    return path
