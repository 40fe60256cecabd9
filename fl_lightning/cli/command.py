"""The command ``fl-lightning``: answer what needs no training directly, and leave the rest to ``cli/federation_cli.py``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fl_lightning.cli.help import COMMANDS, PAGES, class_help, first_page
from fl_lightning.errors import FederationError, did_you_mean, no_space

HELP = """usage: fl-lightning [-h] [--version] COMMAND ...

Federated learning as an ordinary Lightning run.

commands:
{lines}

For the settings of a command: fl-lightning fit --help; of a class: fl-lightning fit --help AdaFed.
A first run: fl-lightning fit --config adafed_mnist
"""


def main() -> None:
    """Run the command line; an error for users, or a full disk, ends in one message and exit status 1."""
    try:
        _run(sys.argv[1:])
    except (FederationError, OSError) as error:
        told = error if isinstance(error, FederationError) else no_space(error)
        if told is None:
            raise
        _refuse(str(told), 1)


def _run(arguments: list[str]) -> None:
    """Run a command. Help, version and the small commands do not import torch, which takes seconds."""
    command, *rest = arguments or ["" if "_ARGCOMPLETE" in os.environ else "--help"]
    if command in ("--help", "-h") and not rest:
        lines = "\n".join(f"  {name:<22}{text}" for name, (_, text) in COMMANDS.items())
        print(HELP.format(lines=lines), end="")
        return
    if arguments == ["--version"]:
        import fl_lightning

        print(f"fl-lightning {fl_lightning.__version__}")
        return
    if command and command not in COMMANDS and not command.startswith("-"):
        if command == "dashboard":
            _refuse("'dashboard' is gone. In W&B, group a project's runs by config.federation.strategy.class_path.")
        _refuse(f"There is no command '{command}'.{did_you_mean(command, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
    if command != "init":  # which finds out whether another package has the name of the new one
        _see_this_folder()
    if command in PAGES and rest[:1] in (["--help"], ["-h"]) and len(rest) < 3:
        print(class_help(rest[1]) if rest[1:] else first_page(command), end="")
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors in huge pages: torch reads it at its first tensor
    module, _ = COMMANDS.get(command, ("", ""))
    if not module:
        _train()
        return
    try:
        takes_all = module.startswith(("fl_lightning.studies", "fl_lightning.flower"))
        import_module(module).main(arguments if takes_all else rest)
    except KeyboardInterrupt:  # before a run has started
        sys.exit(130)


def _refuse(message: str, status: int = 2) -> NoReturn:
    print(f"fl-lightning: error: {message}", file=sys.stderr)
    sys.exit(status)


def _train() -> None:
    """Run Lightning's commands; a fit that logs to CSV ends with its page."""
    from fl_lightning.cli.federation_cli import main as run

    folder = run()
    if folder is not None and (folder / "csv").is_dir():
        from fl_lightning.studies.run_page import write_run_page

        try:
            print(f"Report: {write_run_page(folder)}")
        except FederationError as error:  # the run is complete without it
            print(f"No report: {error}")


def _see_this_folder() -> None:
    """Let dotted paths name modules in the current folder, as ``python -m`` does and a console script does not.

    The folder comes last, so that no file in it hides an installed package. ``PYTHONSAFEPATH`` disables this, except in
    Python 3.10, which does not know it.
    """
    folder = str(Path.cwd())
    if not getattr(sys.flags, "safe_path", False) and not {"", folder} & set(sys.path):
        sys.path.append(folder)
