"""Build the whole configuration of a ``fit`` for a run of a study, before anything is trained."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from typing import Any

from jsonargparse import Namespace

from fl_lightning.cli.federation_cli import FederationCLI
from fl_lightning.compat.jsonargparse import subcommand_parsers
from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.grid import SHORT, Run


class _Complete(Exception):  # noqa: N818
    """The parser has all its settings."""


class SettingsReader(FederationCLI):
    """Read the settings of runs: build the parser once, and parse runs that differ only in their seed once."""

    def __init__(self) -> None:
        with contextlib.suppress(_Complete):
            super().__init__(["fit"])
        self._fit: Any = (subcommand_parsers(self.parser) or {})["fit"]
        self._parsed: dict[tuple[tuple[str, ...], str], Namespace] = {}

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Stop here: nothing is built."""
        raise _Complete

    def read(self, run: Run) -> Namespace:
        """Return the whole configuration of a run, including every default.

        Raises:
            ConfigurationError: with the parser's message and the name of the run.
        """
        key = run.files, repr(run.settings)
        if key not in self._parsed:
            self._parsed[key] = self._parse(run)
        config = copy.deepcopy(self._parsed[key])
        for name in ("seed_everything", "federation.seed"):
            config[name] = run.seed
        for part in (config.data.partitioner, config.data.datamodule):
            drawn = part and part.get("init_args")  # neither is set with 'data.clients'
            if drawn is not None and "seed" in drawn:  # partitioners without random draws have no seed
                drawn.seed = run.seed
        return config

    def _parse(self, run: Run) -> Namespace:
        arguments = ["fit", *(f"--config={file}" for file in run.files)]
        arguments += [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in run.settings]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                config: Namespace = self.parser.parse_args(arguments).fit
        except SystemExit:
            message = said.getvalue().strip().removeprefix("fl-lightning: error:").strip()
            short = f" Short names: {', '.join(SHORT)}." if "unrecognized" in message else ""
            raise ConfigurationError(f"Cannot configure the run '{run.name}': {message}{short}") from None
        return config

    def defaults(self) -> Namespace:
        """Return the configuration of a run that sets nothing."""
        found: Namespace = self._fit.get_defaults()
        return found

    def text(self, config: Namespace) -> str:
        """Return a configuration as YAML, for ``fl-lightning fit --config``."""
        return str(self._fit.dump(config, skip_unset=False, skip_validation=True))  # the parser has checked it
