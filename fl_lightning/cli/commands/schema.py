"""The command ``fl-lightning schema``: propose a schema from a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from fl_lightning.cli.commands.schema_draft import propose
from fl_lightning.config.files import write_new
from fl_lightning.data.table_export import Export, csv_form
from fl_lightning.data.table_file import read_source
from fl_lightning.errors import DataError, FederationError
from fl_lightning.utilities.argument_parser import ArgumentParser


def main(arguments: Sequence[str]) -> None:
    """Run the command; a table that cannot be read ends in one message and exit status 1.

    Args:
        arguments: the arguments after ``schema``.
    """
    parser = ArgumentParser(
        "fl-lightning schema",
        "Propose a schema for the tables of all clients from one of them. Edit it, and send it to every site.",
    )
    parser.add_argument("--from", dest="table", required=True, metavar="FILE", help="a table, CSV with a header or Parquet")
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict; leave it out for features alone")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to a new file instead of the terminal")
    form = """how a CSV file is written, such as '{separator: ";", decimal: ",", encoding: cp1252}'; by default {}"""
    parser.add_argument("--csv", default="{}", metavar="FORM", help=form)
    given = parser.parse_args(arguments)
    try:
        text = _proposed(Path(given.table), given.csv, given.target)
        if given.output is None:
            print(text, end="")
        else:
            write_new(given.output, text)
            print(f"{given.output}\nEdit it, then set it: data.datamodule.schema: {given.output}")
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)


def _proposed(path: Path, form: str, target: str | None) -> str:
    if not path.is_file():
        raise DataError(f"'{path}' is not a file. Set '--from' to a table.")
    try:
        return propose(read_source(path, Export(csv_form(yaml.safe_load(form), "--csv"))), target)
    except yaml.YAMLError as error:
        raise DataError(f"'--csv' is not YAML ({' '.join(str(error).split())}). Put it in single quotes.") from error
