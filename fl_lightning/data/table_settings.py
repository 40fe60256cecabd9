"""Check the settings of a TableDataModule against each other, and against its schema."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fl_lightning.data.schema import Schema
from fl_lightning.errors import ConfigurationError, DataError, require

Kind = Literal["regression", "classification"]


def target_of(
    schema: Schema, target: str | None, kind: str, classes: Any, others: tuple[str | None, str | None]
) -> tuple[str | None, Kind]:
    """Return the target and its kind, which are those of the schema.

    Args:
        schema: the schema.
        target: the setting ``target``.
        kind: the setting ``kind``.
        classes: the setting ``classes``.
        others: the settings ``client_column`` and ``person_column``.

    Raises:
        ConfigurationError: if a setting says something else, or names a field as a column of clients or persons.
    """
    found: Kind = "classification" if schema.classes else "regression"
    said = {"target": (target, "target", schema.target), "kind": (kind, "regression", found)}
    for setting, (value, default, own) in said.items():
        if value not in (default, own):
            raise ConfigurationError(
                f"'data.datamodule.{setting}' is {value!r}, but the schema says {own!r}. Remove '{setting}', or change the "
                "schema of all."
            )
    require(classes is None, "data.datamodule.classes", "left out with a 'schema', which has them", classes)
    names = [field.name for field in schema.fields]
    for setting, column in zip(("client_column", "person_column"), others, strict=True):
        other = column is None or column not in names
        require(other, f"data.datamodule.{setting}", "a column that is not a field of the schema", column)
    return schema.target, found


def check_paths(path: Path | dict[str, Path], held: Path | None, client_column: str | None) -> None:
    """Refuse a column of clients beside files that name them, and files that are trained and tested on.

    Args:
        path: the files of the training rows.
        held: the server's set, if it is a separate file or folder.
        client_column: the setting of this name.

    Raises:
        FederationError: naming the setting.
    """
    if isinstance(path, dict):
        require(bool(path), "data.datamodule.path", "a file, a folder, or a file for each client", path)
    several = isinstance(path, dict) or path.is_dir()
    if several and client_column is not None:
        what = "has a file for each client" if isinstance(path, dict) else f"is the folder '{path}', in which each file is one"
        raise DataError(
            f"'data.datamodule.client_column' names the clients of one file, but 'path' {what}. Set 'client_column' to "
            "null, or 'path' to a file."
        )
    paths: Sequence[Path] = list(path.values()) if isinstance(path, dict) else [path]
    for one in paths if held is not None else []:
        _check_apart(one, held or Path())


def _check_apart(path: Path, held: Path) -> None:
    for inner, outer, what in ((held, path, "trained on"), (path, held, "tested on")):
        if outer.resolve() in (inner.resolve(), *inner.resolve().parents):
            raise DataError(
                f"'{inner}' is inside '{outer}', so its rows would be {what}, too. Set 'data.datamodule.path' to the "
                "training rows alone, and 'test_path' to the others."
            )
