"""Private names of Lightning's command line."""

from __future__ import annotations

from typing import Any

import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI


class OpenCLI(LightningCLI):
    """Let subclasses replace steps of the command line, for which LightningCLI has private methods only."""

    def prepare_subcommand(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Return the parser of a subcommand. Stands in for ``_prepare_subcommand_parser``."""
        return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)

    def bare_subcommand(self, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Return a parser without settings for a subcommand, to return from :meth:`prepare_subcommand`."""
        self._subcommand_method_arguments[subcommand] = []
        return self.init_parser(**kwargs)

    def read_checkpoint_settings(self) -> None:
        """Take the model's settings from ``ckpt_path``. Stands in for ``_parse_ckpt_path``."""
        super()._parse_ckpt_path()

    def set_seed(self) -> None:
        """Seed the process. Stands in for ``_set_seed``."""
        super()._set_seed()

    def run_command(self, subcommand: str) -> None:
        """Run the subcommand, with what goes before and after it. Stands in for ``_run_subcommand``."""
        super()._run_subcommand(subcommand)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        return self.prepare_subcommand(klass, subcommand, **kwargs)

    def _parse_ckpt_path(self) -> None:
        self.read_checkpoint_settings()

    def _set_seed(self) -> None:
        self.set_seed()

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_command(subcommand)

    def _dump_config(self) -> None:
        """Write the settings once for all classes, as Lightning does, but without parsing them again."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="yaml")
            config = yaml.safe_load(text)
            self.config_dump = config[self.config.subcommand] if "subcommand" in self.config else config
