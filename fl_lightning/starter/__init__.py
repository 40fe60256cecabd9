"""The command ``fl-lightning init``, which writes a small project that runs."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.argument_parser import ArgumentParser

TEMPLATE = Path(__file__).parent / "template"
"""The template, whose package is called ``my_project``."""

_OTHER_FOLDERS = ("tests", "runs")


def create_project(folder: Path) -> list[Path]:
    """Write the project into a new or empty folder.

    Args:
        folder: folder of the project. The package gets its name, with ``_`` for ``-``, ``.`` and spaces.

    Returns:
        The files.

    Raises:
        ConfigurationError: if the folder is not empty or not writable, or its name cannot be the name of a package.
    """
    package = package_name(folder.resolve().name)
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(f"'{folder}' is not empty. Choose a new or empty folder.")
        for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            path = folder / str(source.relative_to(TEMPLATE)).replace("my_project", package)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.read_text(encoding="utf-8").replace("my_project", package), encoding="utf-8")
            files.append(path)
    except OSError as error:
        raise ConfigurationError(f"Cannot write '{folder}' ({error}). Choose a new or empty folder.") from error
    return files


def package_name(name: str) -> str:
    """Return the name of a project's package.

    Raises:
        ConfigurationError: if the name cannot be imported, or an installed package has it.
    """
    package = re.sub(r"[-. ]", "_", name)
    if not (package.isidentifier() and package.isascii()) or keyword.iskeyword(package):
        raise ConfigurationError(
            f"'{name}' cannot be the name of a Python package. Use letters, digits, '-' and '_', and begin with a letter, as "
            "in 'my_project'."
        )
    found = importlib.util.find_spec(package)  # folders without __init__.py have no origin, and hide nothing
    if package in _OTHER_FOLDERS or (found is not None and found.origin is not None):
        raise ConfigurationError(f"'{package}' is the name of another package. Choose another name, such as 'my_{package}'.")
    return package


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: the arguments after ``init``.

    Raises:
        ConfigurationError: if the project cannot be written.
    """
    parser = ArgumentParser(
        prog="fl-lightning init",
        description="Write a small project that runs: module, datamodule, configuration, test, README.",
    )
    parser.add_argument("folder", type=Path, help="a new or empty folder; its name becomes the package's")
    folder: Path = parser.parse_args(arguments).folder
    for path in create_project(folder):
        print(path)
    print(f"\nNext:\n  cd {shlex.quote(str(folder))}\n  fl-lightning fit --config config.yaml\n  pytest")
