"""Private names of Lightning's command line."""

from __future__ import annotations

from typing import Any

from jsonargparse import set_dumper
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from fl_lightning.compat.private import Private
from fl_lightning.compat.pyyaml import dump, load

_CLI = "lightning.pytorch.cli.LightningCLI"
_SLOWLY = "builds the settings of all subcommands, also those that were not typed"
_PREPARE = Private("lightning", _CLI, "_prepare_subcommand_parser", _SLOWLY)
_ARGUMENTS = Private("lightning", _CLI, "_subcommand_method_arguments", _SLOWLY)
_READ = Private("lightning", _CLI, "_parse_ckpt_path")
_DUMP = Private("lightning", _CLI, "_dump_config", "lets Lightning write the settings again for each class")
_RUN = Private("lightning", _CLI, "_run_subcommand")


class OpenCLI(LightningCLI):
    """Let subclasses replace steps of the command line, for which LightningCLI has private methods only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in (_RUN, _READ):
            name.require("The command line", LightningCLI)
        for name in (_PREPARE, _DUMP):
            name.exists(LightningCLI)
        super().__init__(*args, **kwargs)

    def prepare_subcommand(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Return the parser of a subcommand. Stands in for ``_prepare_subcommand_parser``."""
        return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)

    def bare_subcommand(self, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Return a parser without settings for a subcommand, to return from :meth:`prepare_subcommand`."""
        arguments: Any = _ARGUMENTS.get(None, self)
        if arguments is None:
            trainer_class: Any = self.trainer_class
            return super()._prepare_subcommand_parser(trainer_class, subcommand, **kwargs)
        arguments[subcommand] = []
        return self.init_parser(**kwargs)

    def read_checkpoint_settings(self) -> None:
        """Take the model's settings from ``ckpt_path``. Stands in for ``_parse_ckpt_path``."""
        super()._parse_ckpt_path()

    def run_command(self, subcommand: str) -> None:
        """Run the subcommand, with what goes before and after it. Stands in for ``_run_subcommand``."""
        super()._run_subcommand(subcommand)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        return self.prepare_subcommand(klass, subcommand, **kwargs)

    def _parse_ckpt_path(self) -> None:
        self.read_checkpoint_settings()

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_command(subcommand)

    def _dump_config(self) -> None:
        self.keep_settings()

    def keep_settings(self) -> None:
        """Write the settings once for all classes, as Lightning does, but without parsing them again."""
        if not hasattr(self, "config_dump"):
            set_dumper("to_load", dump)
            text = self.parser.dump(
                self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="to_load"
            )
            config = load(text)
            self.config_dump = config[self.config.subcommand] if "subcommand" in self.config else config
