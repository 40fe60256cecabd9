"""The smallest use of each private name of Lightning; each returns its result."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import yaml
from bare_lightning import Hook, Logs, Manual, Measured, trainer
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.compile import from_compiled
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from fl_lightning.compat import lightning as of_lightning
from fl_lightning.compat import signals
from fl_lightning.compat.lightning_cli import OpenCLI
from fl_lightning.compat.lightning_hooks import lean_hooks

SLURM = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "job", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def optimizers(_: Path) -> Any:
    """What is read of each form that Lightning documents, or the kind of the error."""
    module = BoringModel()
    first, second = (SGD(module.parameters(), lr=0.1) for _ in range(2))
    step, plateau = StepLR(first, 3), ReduceLROnPlateau(second)
    names = {id(first): "first", id(second): "second", id(step): "step", id(plateau): "plateau"}
    forms: list[Any] = [
        *(first, [first, second], (first,), ([first, second], [step]), ([first], step), [], "none"),
        *({"optimizer": first}, {"optimizer": first, "lr_scheduler": step, "monitor": "x"}),
        *({"optimizer": second, "lr_scheduler": plateau}, {"optimizer": second, "lr_scheduler": plateau, "monitor": "x"}),
        {"optimizer": first, "lr_scheduler": {"scheduler": step, "interval": "step", "frequency": 2, "name": "own"}},
        {"optimizer": first, "lr_scheduler": {"scheduler": step, "interval": "day"}},
        {"optimizer": first, "lr_scheduler": {"interval": "step"}},
        {"optimizer": second, "lr_scheduler": {"scheduler": plateau, "monitor": "x", "strict": False}},
        {"optimizer": first, "lr_scheduler": SimpleNamespace(optimizer=first)},
        [{"optimizer": first, "lr_scheduler": step}, {"optimizer": second}],
    ]
    found: list[Any] = []
    for form in forms:
        try:
            own, configs = of_lightning.configured(form, module)
        except Exception as error:
            found.append(type(error).__name__)
            continue
        settings = [{**vars(config), "scheduler": names[id(config.scheduler)]} for config in configs]
        found.append(([names[id(one)] for one in own], settings, of_lightning.configured_parts(form)[2]))
    return found


def levels_of_logging(_: Path) -> Any:
    hooks = [
        name for name in dir(LightningModule) if name.startswith(("on_", "training_", "test_", "validation_", "optimizer_"))
    ]
    found = {}
    for key in itertools.product([*hooks, "backward", "setup", "state_dict"], (None, True, False), (None, True, False)):
        try:
            found[key] = of_lightning.logging_levels(*key)
        except Exception as error:
            found[key] = issubclass(type(error), (MisconfigurationException, RuntimeError)) and "refused"
    return {key: value for key, value in found.items() if key[0] != "on_gpu"}  # which is no hook


def logged(_: Path) -> Any:
    torch.manual_seed(0)
    fitting = trainer(max_epochs=2, limit_train_batches=3, limit_val_batches=2)
    of_lightning.in_place_results(fitting)
    with lean_hooks():
        fitting.fit(Logs())
    return {name: float(value) for name, value in fitting.callback_metrics.items()}


def advice(_: Path) -> Any:
    """The advice is Lightning's own again after the swap back."""
    cache = WarningCache()
    before = of_lightning.swap_logging_advice(cache)
    of_lightning.swap_logging_advice(before)
    return trainer().state.fn


def validation_set(_: Path) -> Any:
    torch.manual_seed(0)
    seen: list[Any] = []

    def look(fitting: Any, module: Any) -> None:
        loaders = of_lightning.validation_loaders(fitting)
        seen.append(len(loaders.dataset))

    trainer(callbacks=[Hook("on_fit_start", look)]).fit(BoringModel())
    return seen


def slurm(_: Path) -> Any:
    found = [of_lightning.slurm_environment(trainer())]
    with patch.dict(os.environ, SLURM), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*srun.*")
        found.append(of_lightning.slurm_environment(trainer()))
    return found[0], type(found[1]) is SLURMEnvironment, found[1].auto_requeue, found[1].requeue_signal


def flags(_: Path) -> Any:
    ddp = [{"sync_batchnorm": True, "strategy": "ddp", "devices": 2}, {"strategy": "ddp", "devices": 2}, {}]
    return [of_lightning.synchronises_batch_norm(trainer(**flag)) for flag in ddp], of_lightning.detects_anomalies(trainer())


def whole_epochs(_: Path) -> Any:
    whole = trainer()
    before = of_lightning.has_whole_epoch(whole)
    whole.fit(BoringModel())
    return before, of_lightning.has_whole_epoch(whole)


def progress(_: Path) -> Any:
    """Steps and epochs of fits that continue others, and the batches that they see."""
    module, manual, seen = Manual(), trainer(), []
    manual.fit(module)
    module.automatic_optimization = True
    of_lightning.continue_global_step(manual)
    look = Hook("on_train_batch_start", lambda run, _: seen.append((run.current_epoch, run.global_step)))
    torch.manual_seed(0)
    later = trainer(max_epochs=5, callbacks=[look])
    of_lightning.continue_from(later, 3, 7)
    later.fit(own := BoringModel())
    return manual.global_step, later.global_step, later.current_epoch, seen, own.layer.weight.tolist()


def checkpoint(_: Path) -> Any:
    torch.manual_seed(0)
    fitting = trainer()
    fitting.fit(BoringModel())
    found = [of_lightning.checkpoint_of(fitting, weights_only) for weights_only in (True, False)]
    return [(sorted(one), one["state_dict"]["layer.weight"].tolist()) for one in found]


def checkpoint_plugins(_: Path) -> Any:
    inner, other, found = TorchCheckpointIO(), TorchCheckpointIO(), []
    for plugin in (AsyncCheckpointIO(inner), inner):
        fitting = trainer(plugins=[plugin])
        used, replace = of_lightning.innermost_checkpoint_io(fitting)
        replace(other)
        found.append(
            (used is inner, of_lightning.innermost_checkpoint_io(fitting)[0] is other, type(fitting.strategy.checkpoint_io))
        )
    return found


def last_checkpoint(folder: Path) -> Any:
    folder = folder / str(len(list(folder.iterdir())))
    for _ in range(2):
        saver = of_lightning.FindsLastCheckpoint(folder, save_last=True)
        run = trainer(enable_checkpointing=True, callbacks=[saver], default_root_dir=folder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            run.fit(BoringModel(), ckpt_path="last")
    return run.global_step, isinstance(saver, ModelCheckpoint)


def compiled(_: Path) -> Any:
    module = from_compiled(torch.compile(BoringModel(), backend="eager"))
    copied = copy.copy(module)
    vars(copied).update(vars(module))
    of_lightning.forget_compiled(copied)
    found = [of_lightning.is_compiled(one) for one in (BoringModel(), module, copied)]
    return found, copied.training_step.__func__ is BoringModel.training_step


def names_of_metrics(_: Path) -> Any:
    copies: list[Measured] = []

    def keep(fitting: Any, module: Any) -> None:
        own, module.trainer = module.trainer, None
        copies.append(copy.deepcopy(module))
        module.trainer = own

    torch.manual_seed(0)
    trainer(callbacks=[Hook("on_train_batch_end", keep)], limit_train_batches=1).fit(Measured())
    of_lightning.forget_metric_names(copies[0])
    fitting = trainer()
    fitting.fit(copies[0])
    return sorted(fitting.callback_metrics)


def wandb_loggers(folder: Path) -> Any:
    run = SimpleNamespace(id="abc")
    with patch("wandb.init", lambda **settings: run), patch("wandb.run", None):
        logger = WandbLogger(project="mine", save_dir=folder)
        before = of_lightning.wandb_run(logger)
        of_lightning.wandb_settings(logger).pop("anonymous", None)
        begun = logger.experiment
        with patch("wandb.run", begun):
            return before, of_lightning.wandb_run(logger) is begun is run


def handlers(_: Path) -> Any:
    """Handlers after a fit, and the weights."""
    torch.manual_seed(0)
    before, fitting, module = signal.getsignal(signal.SIGTERM), trainer(), BoringModel()
    signals.ignore_signals(fitting)
    fitting.fit(module)
    return signal.getsignal(signal.SIGTERM) == before, module.layer.weight.tolist()


def sigterm(_: Path) -> Any:
    fitting = trainer()
    signals.on_sigterm(fitting, lambda: None)()
    return fitting.received_sigterm


def note(_: Path) -> Any:
    signals.note_sigterm(trainer())


class _Sets(BoringModel):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.drawn = float(torch.rand(1))


class _Bare(OpenCLI):
    def prepare_subcommand(self, klass: type, subcommand: str, **kwargs: Any) -> Any:
        if subcommand == "fit":
            return super().prepare_subcommand(klass, subcommand, **kwargs)
        return self.bare_subcommand(subcommand, **kwargs)


def command_line(folder: Path) -> Any:
    """The settings, the seed and the weights of a run that takes the model's settings from a checkpoint."""
    saved = _Sets(size=7)
    kept = {
        "state_dict": saved.state_dict(),
        "hyper_parameters": {"size": 7, "_instantiator": "x"},
        "epoch": 0,
        "global_step": 0,
    }
    own = folder / "own.ckpt"
    torch.save({**kept, "pytorch-lightning_version": "2.6.0", "optimizer_states": [], "lr_schedulers": []}, own)
    off = [
        f"--trainer.{name}=false" for name in ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    ]
    short = ["--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", *off]
    seen: list[Any] = []
    look = Hook("on_train_start", lambda run, module: seen.append(module.drawn))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?!.*fl_lightning).*")
        for more in ([], [f"--ckpt_path={own}"]):
            with patch.object(_Bare, "instantiate_trainer", _with(look)):
                args = ["fit", *short, *more]
                cli = _Bare(_Sets, save_config_callback=None, seed_everything_default=5, args=args)
            settings = yaml.safe_load(cli.parser.dump(cli.config, format="yaml"))["fit"]
            seen.append((cli.model.hparams["size"], settings["seed_everything"], settings["model"]))
    return seen


def _with(callback: Callback) -> Any:
    usual = OpenCLI.instantiate_trainer

    def instantiate_trainer(self: Any, **kwargs: Any) -> Any:
        return usual(self, **{**kwargs, "callbacks": [callback]})

    return instantiate_trainer
