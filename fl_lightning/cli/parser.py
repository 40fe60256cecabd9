"""The parser of the command line: configurations by name, and one message for a wrong setting."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fl_lightning.cli.help import TopicHelp, nested_class_help
from fl_lightning.cli.messages import explain
from fl_lightning.cli.own_types import own_types
from fl_lightning.compat.jsonargparse import Completable, actions_of, reading_utf8, remembering_options, subcommand_parsers
from fl_lightning.config.arguments import behind_subcommand, config_files, expand, listed
from fl_lightning.config.files import BASE, refuse_unclear, without

_OF_FITS = ("ckpt_path", "weights_only")
"""Settings in the ``config.yaml`` of a run that commands such as ``describe`` do not have."""


class FederationParser(Completable, LightningArgumentParser):
    """Answer a wrong setting with one message instead of the usage of every option."""

    files: ClassVar[list[str]] = []
    """The configurations of the command that is being parsed, for messages."""
    _is_expanded = False

    def parse_args(self, args: Any = None, namespace: Any = None, **settings: Any) -> Namespace:  # type: ignore[override]
        """Parse as jsonargparse does; configurations may be given by name, and are loaded after their bases."""
        given = sys.argv[1:] if args is None else list(args)
        for text in given:
            value = text.partition("=")[2] if text.startswith("-") else text
            if value.startswith(("{", "[")):
                refuse_unclear(value, f"'{value}', ")
        nested = subcommand_parsers(self)
        given = listed(given, "checkpoints") if nested is not None and "evaluate" in given else given
        given = expand(given) if nested is None else behind_subcommand(given, nested)
        FederationParser.files = config_files(given)
        with reading_utf8(), own_types(), remembering_options():
            parsed: Namespace = super().parse_args(given, namespace, **settings)
        return parsed

    def validate(self, namespace: Namespace, *others: Any, **settings: Any) -> None:
        """Check the settings of a subcommand once; jsonargparse checks each of them twice."""
        nested, chosen = subcommand_parsers(self) or {}, namespace.get("subcommand")
        if chosen not in nested or not isinstance(namespace.get(chosen), Namespace) or others or settings.get("branch"):
            super().validate(namespace, *others, **settings)
            return
        rest = namespace.clone()
        inner = rest.pop(chosen)
        try:
            nested[chosen].validate(inner, **settings)
            super().validate(rest, **{**settings, "skip_required": True})
        except (TypeError, KeyError):  # the message of jsonargparse names the subcommand
            super().validate(namespace, **settings)

    def parse_path(self, path: Any, *others: Any, **settings: Any) -> Namespace:
        """Parse as jsonargparse does, without what a file holds for others.

        That is its ``base``, which :meth:`parse_args` has handled, and where a fit starts, if the command does not train.
        """
        self._is_expanded = Path(path).is_file()  # neither a URL nor a pipe
        try:
            parsed: Namespace = super().parse_path(path, *others, **settings)
        finally:
            self._is_expanded = False
        return parsed

    def parse_string(self, content: str, *others: Any, **settings: Any) -> Namespace:
        """Parse as :meth:`parse_path` does."""
        if self._is_expanded:
            options = {option for action in actions_of(self) for option in action.option_strings}
            content = without(content, {BASE, *(name for name in _OF_FITS if f"--{name}" not in options)})
        parsed: Namespace = super().parse_string(content, *others, **settings)
        return parsed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Subcommands take 'allow_abbrev' from their parent only since jsonargparse 4.53.
        super().__init__(*args, add_help=False, **{"allow_abbrev": False, **kwargs})
        self.add_argument("-h", "--help", action=TopicHelp)

    def format_help(self, *args: Any) -> str:
        """Show the settings of a class in a few lines, for ``--<setting>.help CLASS``."""
        asked = re.fullmatch(r"Help for --([\w.]+)\.help=([\w.]+)", self.description or "")
        return nested_class_help(asked[2], asked[1], actions_of(self)) if asked else super().format_help(*args)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what was wrong and how to fix it; exit with status 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        options = [option for action in actions_of(self) for option in action.option_strings]
        parser = getattr(ex, "subcommand_parser", None)
        if parser is not None:
            options += [option for action in actions_of(parser) for option in action.option_strings]
        print(f"fl-lightning: error: {explain(message, options, FederationParser.files)}", file=sys.stderr)
        sys.exit(2)
