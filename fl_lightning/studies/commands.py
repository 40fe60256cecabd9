"""The commands ``fl-lightning compare`` and ``fl-lightning report``."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from fl_lightning.compat.jsonargparse import ActionConfigFile, actions_of, reading_utf8
from fl_lightning.config.files import find, read
from fl_lightning.config.messages import explain, refuse_null
from fl_lightning.errors import ConfigurationError, FederationError
from fl_lightning.studies import require_packages
from fl_lightning.studies.panels import REPORT, ReportOptions
from fl_lightning.studies.run_page import write_run_page

COMMANDS = ("compare", "report")
_OF_A_RUN = {"model", "data", "trainer", "federation"}
_OWN = re.compile(r"--(settings|over)\.([^=]+)(?:=(.*))?", re.DOTALL)


class _StudyFile(ActionConfigFile):
    """Find a study by its name; refuse the configuration of a run."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Read the file."""
        path = find(values, group="studies")
        settings = read(path)
        if "over" not in settings and settings.keys() & _OF_A_RUN:
            raise ConfigurationError(
                f"'{values}' configures one run, not a study. Run it with: fl-lightning fit --config {values}; or compare "
                f"settings of it: fl-lightning compare --base {values} --over.learning_rate '[0.01, 0.1]'"
            )
        with reading_utf8():
            super().__call__(parser, cfg, str(path), option_string)  # type: ignore[no-untyped-call]


class _Parser(ArgumentParser):
    """Report a wrong setting in one message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and exit with status 2."""
        options = [option for action in actions_of(self) for option in action.option_strings]
        said = explain(message, options).partition(" All settings")[0]
        print(f"{self.prog}: error: {said} All settings: {self.prog} --help; examples: docs/studies.md.", file=sys.stderr)
        sys.exit(2)


def _parser(command: str) -> _Parser:
    from fl_lightning.studies.study import Study  # needs the packages of the extra 'compare'

    what = {
        "compare": "Run algorithms x data x seeds, and write the table, tests and figures: see configs/studies.",
        "report": "Write the report of a run or a study again, from its logs or its table: fl-lightning report FOLDER.",
    }
    parser = _Parser(prog=f"fl-lightning {command}", description=what[command])
    parser.add_argument("-c", "--config", action=_StudyFile, help="A study as a YAML file.")
    parser.add_class_arguments(Study, None, skip={"base"} if command == "report" else set())
    if command == "report":
        parser.add_argument("--base", type=str | list[str], default="", help="Not needed.")
        parser.add_argument("--table", type=str | None, default=None, help="The run table; by default the one in 'folder'.")
        parser.add_argument("--out", type=str | None, default=None, help="Folder of the report; by default 'folder'.")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands; a wrong setting ends in one message and exit status 1 (2 if the parser rejects it).

    Args:
        arguments: the command, then its options.
    """
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(_run(*arguments))
    except KeyboardInterrupt:
        _stop(signal.SIGINT, None)
    except FederationError as error:
        print(f"fl-lightning {arguments[0]}: error: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: Any) -> NoReturn:
    print("Stopped. Run the same command again to continue.", file=sys.stderr)
    sys.exit(128 + number)


def _run(command: str, *options: str) -> bool:
    """Run a command, and return whether runs failed."""
    if command == "report" and options and not options[0].startswith("-"):
        folder = Path(options[0])
        if not (folder / "table.csv").exists():
            print(f"Report: {write_run_page(folder)}")
            return False
        kept = [f"--config={folder / REPORT}"] if (folder / REPORT).exists() else []
        options = (*kept, f"--folder={folder}", f"--name={folder.name}", *options[1:])
    require_packages()
    settings = _settings(_parser(command), options)
    if command == "report":
        _report(settings)
        return False
    from fl_lightning.studies.study import Study

    return bool(Study(**settings).compare())


def _settings(parser: _Parser, options: Sequence[str]) -> dict[str, Any]:
    """Parse options; those named ``--settings.<name>`` or ``--over.<name>`` apart.

    Of two names that begin alike, such as ``trainer.max_epochs`` and ``trainer.logger``, the parser would lose the first.
    """
    rest: list[str] = []
    own: list[tuple[str, str, str]] = []
    given = iter(options)
    for option in given:
        named = _OWN.fullmatch(option)
        text = None if named is None else next(given, None) if named[3] is None else named[3]
        if named is None or text is None:  # the parser reports what is missing
            rest.append(option)
        else:
            own.append((named[1], named[2], text))
    config = parser.parse_args(rest)
    for section, name, text in own:
        held = config[section] if isinstance(config[section], dict) else {}
        held.pop(name, None)  # moves it to the end, because the last setting wins
        config[section] = {**held, name: _structure(text)}
    files = config.pop("config") or []
    if config.name is None and files:
        config.name = Path(str(files[-1])).stem
    refuse_null(config, parser)
    return {**config.as_dict(), "report": ReportOptions(**config.report.as_dict())}


def _structure(text: str) -> Any:
    """Parse a list or dictionary; other values stay text, for the parser of a run."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return found if isinstance(found, list | dict) else text


def _report(settings: dict[str, Any]) -> None:
    """Write the report from the table alone; of a study's settings, only 'report' and 'name' are used."""
    from fl_lightning.studies.report import print_files, write_report
    from fl_lightning.studies.run_table import RunTable

    name = settings["name"] or "study"
    folder = Path(settings["folder"] or f"runs/studies/{name}")
    path = Path(settings["table"] or folder / "table.csv")
    known = settings["known"] or []
    table = RunTable.join(RunTable.read(path).axes, [path, *map(Path, [known] if isinstance(known, str) else known)])
    print_files(write_report(table, settings["report"], Path(settings["out"] or folder), name))
