"""The command ``fl-lightning``: answer what needs no training directly, and leave the rest to ``cli/federation_cli.py``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from fl_lightning.cli.help_pages import first_page, has_first_page

SUBCOMMANDS = {
    "fit": "Train a federation: one epoch is one communication round.",
    "validate": "Evaluate a checkpoint on the server's validation set.",
    "test": "Evaluate a checkpoint on the server's test set.",
    "predict": "Write a checkpoint's predictions to a file.",
    "evaluate": "Evaluate every model at every client, without training.",
    "partition": "Show what each client would hold, without training.",
    "describe": "Show that, and how the features of the clients differ, without training.",
    "privacy": "Show epsilon against rounds, cohort and noise, without training.",
    "compare": "Run algorithms x data x seeds, and write the table, tests and figures.",
    "report": "Write the report of a run or a study again, from its logs or its table.",
    "init": "Write a small project that runs, as a starting point for your own.",
    "dashboard": "Make a W&B workspace for the runs of a project.",
    "serve": "Serve a federation over a network: sites connect here.",
    "register": "Register a site with the server by its public key.",
    "sites": "List the registered sites, or revoke one.",
    "site": "Take part in a federation as a site, with data of your own.",
    "algorithms": "List every algorithm with a line, its configuration and its page.",
    "export": "Write one client's complete model: the shared part and its own.",
    "schema": "Propose a schema for the tables of all clients from one of them.",
    "configs": "List, show or copy the configurations that come with the package.",
}

_STUDIES = ("compare", "report")
"""Commands of :mod:`fl_lightning.studies.commands`."""
_FLOWER = {
    **dict.fromkeys(("serve", "register", "sites"), "fl_lightning.flower.wire.serve"),
    "site": "fl_lightning.flower.site.parent",
}
"""Modules whose ``main`` takes the command and its arguments; they need Flower."""

_SMALL = {
    "init": "fl_lightning.starter",
    "configs": "fl_lightning.cli.commands.configs",
    "algorithms": "fl_lightning.cli.commands.algorithms",
    "dashboard": "fl_lightning.cli.commands.dashboard",
}
"""Modules whose ``main`` takes the arguments after the command, and which do not import torch."""

HELP = """usage: fl-lightning [-h] [--version] [--config CONFIG] {subcommand} ...

Federated learning as an ordinary Lightning run.

subcommands:
{lines}

options:
  -h, --help            Show this help message and exit.
  -c, --config CONFIG   Path to a YAML file, or one of 'fl-lightning configs'.
  --print_config[=flags]
                        Print the configuration after applying all other arguments and exit.
  --version             Print version and exit.

For the settings of a subcommand: fl-lightning fit --help; of a class: fl-lightning fit --help AdaFed.
A first run: fl-lightning fit --config adafed_mnist
"""


def main() -> None:
    """Run the command line; a full disk ends in one message and exit status 1."""
    try:
        _run(sys.argv[1:])
    except OSError as error:
        from fl_lightning.errors import no_space

        told = no_space(error)
        if told is None:
            raise
        print(f"fl-lightning: error: {told}", file=sys.stderr)
        sys.exit(1)


def _run(arguments: list[str]) -> None:
    """Run a command. Help, version and the small commands do not import torch, which takes seconds."""
    if arguments in (["--help"], ["-h"]):
        lines = "\n".join(f"  {name:<22}{text}" for name, text in SUBCOMMANDS.items())
        print(HELP.format(subcommand="{" + ",".join(SUBCOMMANDS) + "}", lines=lines), end="")
        return
    if arguments == ["--version"]:
        import fl_lightning

        print(f"fl-lightning {fl_lightning.__version__}")
        return
    if arguments[1:] in (["--help"], ["-h"]) and has_first_page(arguments[0]):
        print(first_page(arguments[0]), end="")
        return
    if arguments[:1] and arguments[0] in _SMALL:
        import_module(_SMALL[arguments[0]]).main(arguments[1:])
        return
    _refuse_unknown(arguments)
    _see_this_folder()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors in huge pages: torch reads it at its first tensor
    if arguments[:1] in (["export"], ["schema"]):
        import_module(f"fl_lightning.cli.commands.{arguments[0]}").main(arguments[1:])
        return
    if arguments[:1] and arguments[0] in _FLOWER:
        import_module(_FLOWER[arguments[0]]).main(arguments)
        return
    if arguments[:1] and arguments[0] in _STUDIES:
        try:
            from fl_lightning.studies.commands import main as study

            study(arguments)
        except KeyboardInterrupt:  # before a run has started
            sys.exit(130)
        return
    _train()


def _train() -> None:
    """Run Lightning's commands; a fit that logs to CSV ends with its page."""
    from fl_lightning.cli.federation_cli import main as run

    folder = run()
    if folder is not None and (folder / "csv").is_dir():
        from fl_lightning.errors import FederationError
        from fl_lightning.studies.run_page import write_run_page

        try:
            print(f"Report: {write_run_page(folder)}")
        except FederationError as error:  # the run is complete without it
            print(f"No report: {error}")


def _refuse_unknown(arguments: list[str]) -> None:
    """Reject a subcommand that does not exist, and suggest the nearest one."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in SUBCOMMANDS:
        from fl_lightning.errors import did_you_mean

        known = f"Subcommands: {', '.join(SUBCOMMANDS)}."
        message = f"There is no subcommand '{arguments[0]}'.{did_you_mean(arguments[0], SUBCOMMANDS)} {known}"
        print(f"fl-lightning: error: {message}", file=sys.stderr)
        sys.exit(2)


def _see_this_folder() -> None:
    """Let dotted paths name modules in the current folder, as ``python -m`` does and a console script does not.

    The folder comes last, so that no file in it hides an installed package. ``PYTHONSAFEPATH`` disables this.
    """
    folder = str(Path.cwd())
    if not _is_safe() and not {"", folder} & set(sys.path):
        sys.path.append(folder)


def _is_safe() -> bool:
    """Return whether Python was told to ignore the current folder, which Python 3.10 does not support."""
    return bool(getattr(sys.flags, "safe_path", False))
