"""The command line: Lightning's command line with a ``federation`` section."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import lightning
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

import fl_lightning
from fl_lightning.callbacks.checkpoints import BestCheckpoint, LastCheckpoint, choose_checkpoint, nothing_to_resume
from fl_lightning.callbacks.feature_cache import FeatureCache
from fl_lightning.callbacks.federation_report import FederationReport
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.callbacks.predictions import PredictionFile
from fl_lightning.callbacks.stopping import interrupted
from fl_lightning.cli.output import SaveRunConfig, describe_model, drop_deprecated, without_tips
from fl_lightning.cli.parser import FederationParser, NamedConfig, own_types
from fl_lightning.cli.ranks import IdleCores, choose_ranks, intra_op_threads, on_cpu
from fl_lightning.cli.trainer import FederationTrainer
from fl_lightning.compat.jsonargparse import subcommand_parsers
from fl_lightning.compat.lightning_cli import OpenCLI
from fl_lightning.config.messages import refuse_null
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, FederationError, add_note, no_space, notes_of, require
from fl_lightning.flower.wire.pool import FlowerPool  # noqa: F401 (so that 'federation.pool' knows its short name)
from fl_lightning.reporting.run_facts import SELECTION, TEST_SET, read_run_facts
from fl_lightning.reporting.wandb import prefer_offline, sweep_folder
from fl_lightning.utilities.allocator import keep_freed_memory
from fl_lightning.utilities.checkpoints import checked, require_trusted, unreadable
from fl_lightning.utilities.collectives import lost_rank
from fl_lightning.utilities.folder_lock import lock_folder

_SECTIONS = {
    "federation_report": FederationReport,
    "feature_cache": FeatureCache,
    "best_checkpoint": BestCheckpoint,
    "last_checkpoint": LastCheckpoint,
}
"""The callbacks of every run besides the orchestrator, by their section."""
CONFIG_VERSION = 1
"""Version of the configuration files that this release reads."""


class FederationCLI(OpenCLI):
    """LightningCLI with the sections of a federation and the command ``partition``."""

    _wandb_id = ""
    fitted: Path | None = None
    """The folder of the run after a fit, on the first rank."""

    def __init__(self, args: ArgsType = None) -> None:
        self._typed_here = args is None  # so Lightning can start other ranks with the same command
        typed = sys.argv[1:2] if args is None else args[:1] if isinstance(args, list) else []
        self._typed = next((command for command in typed if command in self.subcommands()), None)
        with own_types(), ExitStack() as self._until_the_end:
            super().__init__(
                LightningModule,
                FederatedDataModule,
                trainer_class=FederationTrainer,
                subclass_mode_model=True,
                save_config_callback=SaveRunConfig,
                seed_everything_default=0,
                trainer_defaults={"callbacks": [PredictionFile()], "enable_model_summary": False},
                parser_kwargs={"prog": "fl-lightning", "version": fl_lightning.__version__},
                parser_class=FederationParser,
                auto_configure_optimizers=False,
                args=args,
            )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return a parser that finds configurations by name."""
        parser = FederationParser(**{"dump_header": [f"lightning.pytorch=={lightning.__version__}"], **kwargs})
        parser.add_argument("-c", "--config", action=NamedConfig, help="A YAML file, or one of 'fl-lightning configs'.")
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's subcommands, and those that do not train."""
        more = {name: {"model", "datamodule"} for name in ("partition", "describe", "privacy")}
        return {**OpenCLI.subcommands(), **more, "evaluate": {"model", "datamodule", "checkpoints"}}

    def prepare_subcommand(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Add settings only to the subcommand that was typed: adding them to one takes 0.06 s."""
        if self._typed not in (None, subcommand):
            return self.bare_subcommand(subcommand, **kwargs)
        parser = super().prepare_subcommand(klass, subcommand, **kwargs)
        if subcommand == "evaluate":  # several without brackets
            parser.add_argument(
                "--checkpoints", type=str, nargs="+", default=[], help="Checkpoints; by default the run's best."
            )
        return parser

    def evaluate(self, **settings: Any) -> None:
        """Evaluate with the checkpoints of the command line."""
        self.trainer.evaluate(checkpoints=self._config.checkpoints, **settings)  # type: ignore[attr-defined]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections."""
        parser.add_lightning_class_args(FederatedOrchestrator, "federation")
        for section, kind in _SECTIONS.items():
            parser.add_lightning_class_args(kind, section)
        parser.add_argument("--keep_freed_memory", type=bool, default=True, help="Keep memory that is freed: docs/speed.md.")
        parser.add_argument("--test_best", type=bool, default=False, help="Test a fit's best checkpoint: docs/studies.md.")
        parser.add_argument("--config_version", type=int, default=CONFIG_VERSION, help="Version of the configuration file.")
        parser.set_defaults({"trainer.default_root_dir": "runs/default", "trainer.devices": None})

    def before_instantiate_classes(self) -> None:
        """Check where a fit starts before anything is built, and choose W&B's mode."""
        config = self._config
        if self._chooses_ranks:
            self._until_the_end.enter_context(intra_op_threads(config.federation.local.threads))
        if config.keep_freed_memory and self.subcommand == "fit":
            keep_freed_memory()
        if self.subcommand == "fit" and _is_first_rank():
            self._choose_start(Path(config.last_checkpoint.dirpath))
        if config.trainer.logger is None:
            config.trainer.logger = _default_loggers(Path(config.trainer.default_root_dir))
        loggers = config.trainer.logger if isinstance(config.trainer.logger, list) else [config.trainer.logger]
        for logger in loggers:
            if re.fullmatch(r"lightning\.pytorch\.loggers\.(wandb\.)?WandbLogger", str(getattr(logger, "class_path", ""))):
                logger.class_path = "fl_lightning.FederationWandbLogger"
        if "WandbLogger" in str(loggers):
            self._prepare_wandb(Path(config.trainer.default_root_dir))

    @property
    def _config(self) -> Namespace:
        config: Namespace = self.config[self.config.subcommand]
        return config

    @property
    def _writes(self) -> bool:
        """Return whether this process writes the folder of a run."""
        return self.subcommand == "fit" and _is_first_rank() and not self._config.trainer.fast_dev_run

    def _settle_folders(self) -> None:
        """Check what can be checked now, and set the folders of the run and of its checkpoints."""
        config = self._config
        _refuse_second_callbacks(config)
        refuse_null(config, (subcommand_parsers(self.parser) or {})[self.config.subcommand])
        for name, value in config.items():
            require(not isinstance(value, int) or abs(value) < 2**63, name, "a number of 64 bits", value)
        seed = config.seed_everything
        require(isinstance(seed, bool) or seed is None or 0 <= seed < 2**32, "seed_everything", "from 0 to 4294967295", seed)
        if config.config_version != CONFIG_VERSION:
            raise ConfigurationError(
                f"'config_version' is {config.config_version}, but fl_lightning {fl_lightning.__version__} reads version "
                f"{CONFIG_VERSION}. Install the release that the configuration was written for, or see CHANGELOG.md."
            )
        config.trainer.default_root_dir = sweep_folder(config.trainer.default_root_dir)
        root = Path(config.trainer.default_root_dir)
        if root.exists() and not root.is_dir():
            raise ConfigurationError(f"'trainer.default_root_dir' is the file '{root}'. Set it to a folder for the run.")
        for section in ("best_checkpoint", "last_checkpoint"):
            config[section].dirpath = config[section].dirpath or str(root / "checkpoints")

    def _choose_start(self, folder: Path) -> None:
        """Reject resuming without a checkpoint, and overwriting an earlier run."""
        found = sorted(path.name for path in folder.glob("*.ckpt"))
        resumes, debugs = self._config.ckpt_path, self._config.trainer.fast_dev_run
        if resumes == "last" and not found:
            raise nothing_to_resume(str(folder))
        if not resumes and found and not debugs:
            raise ConfigurationError(
                f"'{folder}' already contains a run ({', '.join(found)}). Resume it with '--ckpt_path last', or start another "
                "run in its own folder with '--trainer.default_root_dir'."
            )

    def _prepare_wandb(self, root: Path) -> None:
        """Choose offline mode without an API key; let a resumed run or a test continue the run's id."""
        prefer_offline()
        os.environ.setdefault("WANDB_SILENT", "true")
        kept = root / "wandb_run_id.txt"
        found = kept.read_text(encoding="utf-8").strip() if kept.exists() else ""
        if self._writes:
            found = self._wandb_id = (found if self._config.ckpt_path else "") or secrets.token_hex(4)
        if found and (self._wandb_id or self.subcommand in ("test", "evaluate")):
            os.environ.setdefault("WANDB_RUN_ID", found)
            os.environ.setdefault("WANDB_RESUME", "allow")

    def run_command(self, subcommand: str) -> None:
        """Run the command; a fit locks its folder."""
        root = Path(self.trainer.default_root_dir)
        cast(FederationTrainer, self.trainer).makes_folder = not root.exists()
        drop_deprecated(self.trainer.loggers)
        if self._writes:
            self._until_the_end.enter_context(lock_folder(root))
            self._choose_start(Path(self._config.last_checkpoint.dirpath))  # another run may have ended in the meantime
        super().run_command(subcommand)

    def before_fit(self) -> None:
        """Print what will be trained, and save W&B's id for later runs, now that everything could be built."""
        if self.trainer.is_global_zero:
            print(describe_model(self.model))
        if self._wandb_id:
            (Path(self.trainer.default_root_dir) / "wandb_run_id.txt").write_text(self._wandb_id, encoding="utf-8")

    def after_fit(self) -> None:
        """Test the best checkpoint, if asked to and the server has validated on another set than the test set."""
        best = Path(self._config.best_checkpoint.dirpath) / "best.ckpt"
        selected_on = read_run_facts(Path(self.trainer.default_root_dir)).get(SELECTION, TEST_SET)
        if self._config.test_best and selected_on != TEST_SET and best.exists():
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False)
        if self._writes:
            self.fitted = Path(self.trainer.default_root_dir)

    def instantiate_classes(self) -> None:
        """Build everything; report an error in a constructor as a wrong setting."""
        data = self._config.data
        given = data.get("clients")
        try:
            if given:
                self.keep_settings()  # while it holds settings alone
                data.clients = {name: self._build_client(name, one) for name, one in given.items()}
            super().instantiate_classes()
        except ValueError as error:
            if _expected(error) is not None:
                raise
            raise ConfigurationError(f"A setting is rejected: {str(error).rstrip('.')}. Change it.") from error
        finally:
            data.clients = given  # config.yaml holds settings

    def _build_client(self, name: str, settings: Any) -> Any:
        """Build the datamodule of a client."""
        parser = FederationParser()
        parser.add_argument("--client", type=LightningDataModule)
        try:
            return parser.instantiate(Namespace(client=settings)).client  # type: ignore[no-untyped-call]
        except Exception as error:
            add_note(_expected(error) or error, f"In the data of client '{name}'.")
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the Trainer; with ``trainer.devices auto``, a fit on a CPU gets the ranks that the machine can use."""
        given, built = self._config.trainer, self.config_init[self.config.subcommand]
        if given.devices is None:
            kwargs["devices"] = "auto"  # Lightning's default: one process on a CPU
        elif self._chooses_ranks:
            ranks, why = choose_ranks(built.federation, self.datamodule, given.num_nodes, self._typed_here)
            kwargs["devices"] = ranks
            if _is_first_rank():
                print(f"Trains on {ranks} rank{'s' * (ranks != 1)}: {why}.")
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except TypeError as error:
            raise ConfigurationError(f"A setting of 'trainer' is rejected: {str(error).rstrip('.')}. Change it.") from error
        if given.devices is None and self.subcommand == "fit" and self._typed_here and not given.fast_dev_run:
            trainer.callbacks.append(IdleCores(built.federation))  # type: ignore[attr-defined]
        return trainer

    @property
    def _chooses_ranks(self) -> bool:
        given = self._config.trainer
        return bool(self.subcommand == "fit" and given.devices == "auto" and on_cpu(given.accelerator))

    def read_checkpoint_settings(self) -> None:
        """Choose the checkpoint, and report one that cannot be read in one message."""
        if not self.config.get("subcommand"):
            return
        self._settle_folders()
        config = self._config
        choose_checkpoint(config, self.config.subcommand, _is_first_rank())
        path, trusted = config.get("ckpt_path"), require_trusted(config.federation.checkpoints.trusted_classes)
        if not path or not Path(path).is_file():
            return
        try:
            with checked(path, trusted):
                super().read_checkpoint_settings()
        except (SystemExit, FederationError):
            raise
        except Exception as error:
            raise unreadable(path, error) from error


def main(args: ArgsType = None) -> Path | None:
    """Run the command line; a wrong setting ends in one message and exit status 1 (2 if the parser rejects it).

    Returns:
        The folder of a run that was fitted, on its first rank.
    """
    try:
        with without_tips():
            return FederationCLI(args).fitted
    except SIGTERMException:
        if _is_first_rank():
            print("Stopped by SIGTERM. The saved rounds are kept: resume with --ckpt_path last.", file=sys.stderr)
        sys.exit(128 + signal.SIGTERM)
    except (KeyboardInterrupt, SystemExit) as error:
        if not interrupted(error):
            raise
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        expected = _expected(error) or lost_rank(error) or no_space(error)
        if expected is None:
            raise
        notes = [] if isinstance(expected, OSError) else notes_of(expected)  # the message of such an error has them
        print(f"fl-lightning: error: {' '.join([str(expected), *notes])}", file=sys.stderr)
        sys.exit(1)


def _expected(error: BaseException | None) -> BaseException | None:
    """Return the error made for the user in a chain of causes; jsonargparse wraps the errors of constructors."""
    while error is not None and not isinstance(error, FederationError | MisconfigurationException):
        if isinstance(error, FileNotFoundError | PermissionError) and notes_of(error) and "\n" not in str(error):
            return error  # it says which file a client lacks; the message of a worker's error is a traceback
        error = error.__cause__
    return error


def _refuse_second_callbacks(config: Namespace) -> None:
    """Refuse callbacks in ``trainer.callbacks`` that a section of the configuration sets up."""
    given = config.trainer.callbacks or []
    for callback in given if isinstance(given, list) else [given]:
        for section, kind in {"federation": FederatedOrchestrator, **_SECTIONS}.items():
            monitor = (callback.get("init_args") or {}).get("monitor")
            if callback.class_path == f"fl_lightning.{kind.__name__}" and monitor in (None, config[section].get("monitor")):
                raise ConfigurationError(
                    f"'trainer.callbacks' has a {kind.__name__}, but every run has one by its section '{section}'. Set "
                    f"'{section}' instead, and remove it from 'trainer.callbacks'."
                )


def _default_loggers(root: Path) -> list[Namespace]:
    """Return W&B, named after the run's folder, and CSV next to it; ``--trainer.logger false`` disables both."""
    known = {
        "fl_lightning.FederationWandbLogger": {"project": "fl_lightning", "name": root.name, "save_dir": str(root)},
        "lightning.pytorch.loggers.CSVLogger": {"save_dir": str(root), "name": "csv"},
    }
    return [Namespace(class_path=n, init_args=Namespace(args)) for n, args in known.items()]  # type: ignore[no-untyped-call]


def _is_first_rank() -> bool:
    """Return whether this process writes files; other ranks would overwrite or duplicate them."""
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]
