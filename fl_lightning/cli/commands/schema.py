"""The command ``fl-lightning schema``: propose a schema from a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from fl_lightning.cli.commands.schema_draft import propose
from fl_lightning.data.table_export import Export, csv_form
from fl_lightning.data.table_file import read_source
from fl_lightning.errors import DataError, FederationError


def main(arguments: Sequence[str]) -> None:
    """Run the command; a table that cannot be read ends in one message and exit status 1.

    Args:
        arguments: the arguments after ``schema``.
    """
    parser = argparse.ArgumentParser(
        prog="fl-lightning schema",
        description="Propose a schema for the tables of all clients from one of them. Edit it, and send it to every site.",
    )
    parser.add_argument("--from", dest="table", required=True, metavar="FILE", help="a table, CSV with a header or Parquet")
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict; leave it out for features alone")
    parser.add_argument("--output", metavar="FILE", help="write to a new file instead of the terminal")
    parser.add_argument("--without", nargs="+", default=[], metavar="COLUMN", help="columns that are no fields, e.g. patients")
    parser.add_argument("--ranges", action="store_true", help="take ranges from the table, which tell about its rows")
    form = """how a CSV file is written, such as '{separator: ";", decimal: ",", encoding: cp1252}'; by default {}"""
    parser.add_argument("--csv", default="{}", metavar="FORM", help=form)
    given = parser.parse_args(list(arguments))
    try:
        text = _proposed(given)
        if given.output is None:
            print(text, end="")
        else:
            _write(Path(given.output), text)
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)


def _proposed(given: argparse.Namespace) -> str:
    path = Path(given.table)
    if not path.is_file():
        raise DataError(f"'{path}' is not a file. Set '--from' to a table.")
    try:
        form = csv_form(yaml.safe_load(given.csv), "--csv")
    except yaml.YAMLError as error:
        raise DataError(f"'--csv' is not YAML ({' '.join(str(error).split())}). Put it in single quotes.") from error
    return propose(read_source(path, Export(form)), given.target, given.without, given.ranges)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DataError(f"'{path}' already exists and was not changed. Name another file.") from None
    except OSError as error:
        raise DataError(f"Cannot write '{path}': {error}. Name another file.") from None
    print(f"{path}\nEdit it, then set it: data.datamodule.schema: {path}")
