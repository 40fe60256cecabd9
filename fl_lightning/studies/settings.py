"""From a run of a study to the whole configuration of a ``fit``, before anything is trained."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
from typing import Any

from jsonargparse import Namespace, dict_to_namespace

from fl_lightning.cli import FederationCLI, FederationParser
from fl_lightning.compat.jsonargparse import subcommand_parsers
from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.grid import SHORT, Run


class _Parser(FederationCLI):
    """The command line's parser, which only parses."""

    def __init__(self) -> None:
        super().__init__()

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Not yet."""
        self.config = dict_to_namespace({"subcommand": "fit"})

    def read_checkpoint_settings(self) -> None:
        """Nothing to start from."""

    def set_seed(self) -> None:
        """Nothing is drawn."""

    def before_instantiate_classes(self) -> None:
        """Nothing is built."""

    def instantiate_classes(self) -> None:
        """Nothing is built."""

    def run_command(self, subcommand: str) -> None:
        """Nothing is run."""


class SettingsReader:
    """Reads the settings of runs; the parser is built once, and runs that differ in their seed alone are parsed once."""

    def __init__(self) -> None:
        parser: Any = _Parser().parser
        self._parser: FederationParser = parser
        self._parsed: dict[tuple[tuple[str, ...], str], Namespace] = {}

    def read(self, run: Run) -> Namespace:
        """The whole configuration of a run, every default in it.

        Raises:
            ConfigurationError: with the parser's message, naming the run.
        """
        key = run.files, repr(run.settings)
        if key not in self._parsed:
            self._parsed[key] = self._parse(run)
        config = copy.deepcopy(self._parsed[key])
        for name in ("seed_everything", "federation.seed"):
            config[name] = run.seed
        for part in (config.data.partitioner, config.data.datamodule):
            drawn = part.get("init_args")
            if drawn is not None and "seed" in drawn:  # what draws nothing has none
                drawn.seed = run.seed
        return config

    def _parse(self, run: Run) -> Namespace:
        arguments = ["fit", *(f"--config={file}" for file in run.files)]
        arguments += [f"--{name}={_argument(value)}" for name, value in run.settings]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                config: Namespace = self._parser.parse_args(arguments).fit
        except SystemExit:
            message = said.getvalue().strip().removeprefix("fl-lightning: error:").strip()
            short = f" Short names: {', '.join(SHORT)}." if "unrecognized" in message else ""
            raise ConfigurationError(f"The run '{run.name}' cannot be configured: {message}{short}") from None
        return config

    def text(self, config: Namespace) -> str:
        """As YAML, for ``fl-lightning fit --config``."""
        subcommands = subcommand_parsers(self._parser)
        assert subcommands is not None
        return str(subcommands["fit"].dump(config, skip_none=False, skip_validation=True))  # the parser has checked it


def fingerprint(text: str) -> str:
    """Return a digest that stays the same if and only if the settings do."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
