"""The commands ``fl-lightning compare`` and ``fl-lightning report``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import ActionConfigFile

from fl_lightning.errors import FederationError
from fl_lightning.studies.report import require_packages
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.study import Study

COMMANDS = ("compare", "report")


class _Parser(ArgumentParser):
    """Answers a wrong setting with one message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print it; exit status 2."""
        from fl_lightning.cli_messages import explain

        options = [option for action in self._actions for option in action.option_strings]
        print(f"{self.prog}: error: {explain(message, options)}", file=sys.stderr)
        sys.exit(2)


def _parser(command: str) -> _Parser:
    what = {
        "compare": "Run algorithms x data x seeds, and write the table, tests and figures: see configs/studies.",
        "report": "Write a study's report again, from its table alone.",
    }
    parser = _Parser(prog=f"fl-lightning {command}", description=what[command])
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="A study as a YAML file.")
    parser.add_class_arguments(Study, None)
    if command == "report":
        parser.add_argument("--table", type=str | None, default=None, help="The run table; by default the one in 'folder'.")
        parser.add_argument("--out", type=str | None, default=None, help="Where to write; by default 'folder'.")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands; a wrong setting ends in one message and exit status 1 (2 where the parser refuses it).

    Args:
        arguments: the command, then its options.
    """
    command, *options = arguments
    config = _parser(command).parse_args(options)
    files = config.pop("config") or []
    if config.name is None and files:
        config.name = Path(str(files[-1])).stem
    table, out = config.pop("table", None), config.pop("out", None)
    try:
        study = Study(**_plain(config))
        sys.exit(_compare(study) if command == "compare" else _report(study, table, out))
    except FederationError as error:
        print(f"fl-lightning {command}: error: {error}", file=sys.stderr)
        sys.exit(1)


def _plain(config: Any) -> dict[str, Any]:
    from fl_lightning.studies.report import ReportOptions

    settings = dict(config.as_dict())
    settings["report"] = ReportOptions(**settings["report"])
    return settings


def _compare(study: Study) -> int:
    signal.signal(signal.SIGTERM, _stop)
    try:
        return 1 if study.compare() else 0
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        return 130


def _stop(number: int, frame: Any) -> NoReturn:
    print("Stopped. The same command goes on from here.", file=sys.stderr)
    sys.exit(128 + number)


def _report(study: Study, table: str | None, out: str | None) -> int:
    require_packages()
    study.write_report(RunTable.read(Path(table) if table else study.table_path), Path(out) if out else study.folder)
    return 0
