"""The parser of the command line: configurations by name, and one message for a wrong setting."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

import fl_lightning
from fl_lightning.cli.help import PAGES, first_page
from fl_lightning.compat.jsonargparse import (
    ActionConfigFile,
    Completable,
    actions_of,
    preferring,
    reading_utf8,
    subcommand_parsers,
)
from fl_lightning.config.files import BASE, in_order, read, refuse_unclear, without
from fl_lightning.config.messages import explain
from fl_lightning.errors import ConfigurationError

_OF_FITS = ("ckpt_path", "weights_only")
"""Settings in the ``config.yaml`` of a run that commands such as ``describe`` do not have."""
_LIMITS = tuple(f"limit_{kind}_batches" for kind in ("train", "val", "test", "predict"))


@contextmanager
def own_types() -> Iterator[None]:
    """Let a block read files as UTF-8, numbers of batches before shares, and bare names as classes of this package.

    typing treats Union[int, float] and Union[float, int] as equal and keeps the one that was written first in the process. If
    that is the latter, the parser would read '2' batches as the share 2.0.
    """
    annotations = inspect.unwrap(Trainer.__init__).__annotations__
    limits = dict.fromkeys(_LIMITS, int | float | None)
    ours = {name: f"fl_lightning.{name}" for name in fl_lightning.__all__}
    with reading_utf8(), patch.dict(annotations, limits), preferring(ours):
        yield


class NamedConfig(ActionConfigFile):
    """Load a configuration by its name or path, after its bases; leave settings in braces, URLs and pipes to jsonargparse."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Load the files that are not loaded yet."""
        if _is_text(values):
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
            return
        files = in_order(values, [path for path in cfg.get(self.dest) or [] if isinstance(path, Path)])
        commands = subcommand_parsers(parser)
        if commands is not None and (len(files) > 1 or not read(files[0]).keys() <= commands.keys()):
            raise ConfigurationError(f"Give '--config {values}' after the command: fl-lightning fit --config {values}.")
        options = {option for action in actions_of(parser) for option in action.option_strings}
        left_out = {BASE, *(name for name in _OF_FITS if f"--{name}" not in options)} - (commands or {}).keys()
        for path in files:
            file = path.absolute()
            with reading_utf8({file: without(file.read_text(encoding="utf-8"), left_out)}):
                super().__call__(parser, cfg, str(file), option_string)  # type: ignore[no-untyped-call]
            cfg[self.dest][-1] = path


def _is_text(value: str) -> bool:
    """Return whether a value is no name of a file."""
    path = Path(value)
    is_pipe = len(value) < 256 and path.exists() and not path.is_file() and not path.is_dir()
    return is_pipe or value in ("", "-") or bool(re.search(r"[{\n]|://|: ", value))


class FederationParser(Completable, LightningArgumentParser):
    """Answer a wrong setting with one message instead of the usage of every option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Subcommands take 'allow_abbrev' from their parent only since jsonargparse 4.53.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Any = None, namespace: Any = None, **settings: Any) -> Namespace:  # type: ignore[override]
        """Parse as jsonargparse does, after refusing settings in braces that set something twice."""
        for text in sys.argv[1:] if args is None else args:
            value = text.partition("=")[2] if text.startswith("-") else text
            if value.startswith(("{", "[")):
                refuse_unclear(value, f"'{value}', ")
        with own_types():
            parsed: Namespace = super().parse_args(args, namespace, **settings)
        return parsed

    def format_help(self, *args: Any) -> str:
        """Return the first page of a command."""
        command = str(getattr(self, "subcommand", ""))
        return first_page(command) if command in PAGES else super().format_help(*args)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what was wrong and how to fix it; exit with status 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        parsers = [self, *(subcommand_parsers(self) or {}).values()]
        options = {option for one in parsers for action in actions_of(one) for option in action.option_strings}
        print(f"fl-lightning: error: {explain(message, sorted(options))}", file=sys.stderr)
        sys.exit(2)
