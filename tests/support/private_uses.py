"""Uses of the private names of other packages: small ones, and federations, which look up most of them."""

import argparse
import gc
import multiprocessing
import sys
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torchmetrics
import wandb
import yaml
from bare_lightning import Hook, trainer
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from torch import distributed, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR, StepLR
from torch.utils.data import DataLoader
from ways import fit

from fl_lightning.compat import jsonargparse as of_jsonargparse
from fl_lightning.compat import lightning as of_lightning
from fl_lightning.compat import python, signals
from fl_lightning.compat import torch as of_torch
from fl_lightning.compat import torchmetrics as of_torchmetrics
from fl_lightning.compat import wandb as of_wandb
from fl_lightning.compat.lightning_cli import OpenCLI

USES: dict[Callable[[Path], Any], Any] = {}
"""Uses, each with what it returns, or ``...`` where a public way is the only oracle."""


def use(result: Any = ...) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """Note a use and what it returns."""

    def note(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
        USES[function] = result
        return function

    return note


Use = Callable[[Path], Any]


@use()
def lists_of_tensors(_: Path) -> Any:
    generator = torch.Generator().manual_seed(0)
    first, second = ([torch.randn(n, generator=generator) for n in (1, 4, 7)] for _ in range(2))
    found = [of_torch.subtract_each(first, second)]
    for change in (
        lambda own: of_torch.add_to_each(own, second, alpha=0.3),
        lambda own: of_torch.copy_to_each(own, second),
        lambda own: of_torch.raise_each_to(own, -0.2),
        lambda own: of_torch.lower_each_to(own, 0.2),
    ):
        found.append([tensor.clone() for tensor in first])
        change(found[-1])
    return [tensor.tolist() for each in found for tensor in each]


@use((torch.float32, torch.float32))
def autocast(_: Path) -> Any:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with of_torch.outside_autocast("cpu"):
        outside = layer(x).dtype
    with torch.autocast("cpu", torch.bfloat16), of_torch.outside_autocast("cpu"):
        return outside, layer(x).dtype


@use((False, True, 1))
def process_group(folder: Path) -> Any:
    store = distributed.FileStore(str(folder / f"store-{len(list(folder.iterdir()))}"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with of_torch.without_process_group():
            inside = distributed.is_initialized()
        return inside, distributed.is_initialized(), distributed.get_world_size()
    finally:
        distributed.destroy_process_group()


@use([True, False])
def fused_steps(_: Path) -> Any:
    parameters = list(nn.Linear(1, 1).parameters())
    found = [Adam(parameters, fused=fused) for fused in (True, False)]
    return [of_torch.unscales_in_step(one) for one in found]


@use([False, True])
def overflows(_: Path) -> Any:
    found = []
    for factor in (1.0, float("inf")):
        layer = nn.Linear(1, 1)
        optimizer, scaler = SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        scaler.scale(layer(torch.ones(1, 1)).sum() * factor).backward()
        scaler.unscale_(optimizer)
        found.append(of_torch.overflowed(scaler, optimizer))
    return found


@use([[0, 1, 2], [0, 1, 2], []])
def schedules_of_schedules(_: Path) -> Any:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    parts = [StepLR(optimizer, size) for size in (1, 2, 3)]
    chains = (SequentialLR(optimizer, parts, milestones=[3, 5]), ChainedScheduler(parts, optimizer), parts[0])
    return [[parts.index(part) for part in of_torch.chained_schedules(one)] for one in chains]


@use([0.1 * 0.1])
def last_rates(_: Path) -> Any:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    schedule = StepLR(optimizer, 1)
    of_torch.update_last_rates(schedule)
    optimizer.step()
    schedule.step()
    return schedule.get_last_lr()


@use(([1, 2, 3], set()))
def workers(_: Path) -> Any:
    before = set(multiprocessing.active_children())
    loader = DataLoader([1, 2, 3], num_workers=1, persistent_workers=True)
    read = [int(number) for number in loader]
    of_torch.stop_workers(loader)
    del loader
    gc.collect()
    return read, set(multiprocessing.active_children()) - before


@use([["1", ("2", None)], {"a": [3]}])
def trees(_: Path) -> Any:
    leaves, spec = of_torch.tree_flatten([1, (2, None)])
    assert spec != of_torch.tree_flatten([1, 2])[1]
    return [of_torch.tree_unflatten([leaf and str(leaf) for leaf in leaves], spec), of_torch.tree_map(abs, {"a": [-3]})]


@use([True, False, False])
def summed(_: Path) -> Any:
    metrics = (torchmetrics.MeanMetric(), torchmetrics.MaxMetric(), torchmetrics.CatMetric())
    return [of_torchmetrics.summed_states(metric) is not None for metric in metrics]


@use()
def chart(_: Path) -> Any:
    table = wandb.Table(columns=["x", "y"], data=[[0, 1]])
    found = of_wandb.chart_of_table(table, "shared", "wandb/lineseries/v0", {"step": "x"}, {"title": "Found again"})
    return found.table.data, found.spec.spec_name, found.spec.fields, found.spec.string_fields


@use(2.0)
def latest_value(_: Path) -> Any:
    metric = torchmetrics.MeanMetric()
    metric(torch.tensor(2.0))
    return of_torchmetrics.latest_value(metric)


@use()
def names_of_modules(_: Path) -> Any:
    return dict(python.modules_today())


@use([True])
def exit_functions(_: Path) -> Any:
    """Whether the end of W&B's run is called, which W&B registers with atexit."""
    called: list[bool] = []
    stand_in = types.SimpleNamespace(finish=lambda: called.append(True))
    with patch("atexit._run_exitfuncs", stand_in.finish), patch.dict(sys.modules, {"wandb": stand_in}):
        python.run_exit_functions()
    return called


class Takes:
    def __init__(self, size: int | None = 3, name: str = "me") -> None:
        """Take some settings."""


_TAKEN = ["takes.size", "takes.name"]


@use(([["help", "version", "config", "print_config", "takes", *_TAKEN], ["help", "x"]], _TAKEN, True, None))
def options(_: Path) -> Any:
    parser = ArgumentParser(version="1")
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(Takes, "takes")
    outer = ArgumentParser()
    inner = outer.add_subcommands()
    inner.add_subcommand("go", parser)
    plain = argparse.ArgumentParser()
    plain.add_argument("--x", type=int)
    found = [[action.dest for action in of_jsonargparse.actions_of(one)] for one in (parser, plain)]
    nested = [of_jsonargparse.subcommand_parsers(one) for one in (outer, parser)]
    settings = [action.dest for action in filter(of_jsonargparse.is_setting, of_jsonargparse.actions_of(parser))]
    return found, settings, nested[0] == {"go": parser}, nested[1]


@use()
def lists(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--rows", type=list[list[int]])
    parser.add_argument("--stops", type=list[EarlyStopping])
    stops = '[{"class_path": "EarlyStopping", "init_args": {"monitor": "x"}}]'
    with of_jsonargparse.preferring({}):
        return parser.dump(
            parser.parse_args(["--rows=[[1, 2], [3]]", f"--stops={stops}", "--stops+=EarlyStop", "--stops.monitor=y"])
        )


@use(dict.fromkeys(("stop", "stop.help"), EarlyStopping | None) | {"help": None, "x": int, "y": list[str], "z": None})
def types_of_settings(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--stop", type=EarlyStopping | None)
    parser.add_argument("--x", type=int)
    parser.add_argument("--y", type=list[str], default=["a"])
    parser.add_argument("--z", action="store_true")
    return {action.dest: of_jsonargparse.type_of(action) for action in of_jsonargparse.actions_of(parser)}


class EarlyStop(EarlyStopping):
    pass


@use([64])
def validation_set(_: Path) -> Any:
    torch.manual_seed(0)
    seen: list[Any] = []

    def look(fitting: Any, module: Any) -> None:
        loaders = of_lightning.validation_loaders(fitting)
        seen.append(len(loaders.dataset))

    trainer(callbacks=[Hook("on_fit_start", look)]).fit(BoringModel())
    return seen


@use(([True, False, False], False))
def flags(_: Path) -> Any:
    ddp = [{"sync_batchnorm": True, "strategy": "ddp", "devices": 2}, {"strategy": "ddp", "devices": 2}, {}]
    return [of_lightning.synchronises_batch_norm(trainer(**flag)) for flag in ddp], of_lightning.detects_anomalies(trainer())


@use(True)
def checkpoint_before_it_is_saved(_: Path) -> Any:
    fitting = trainer()
    fitting.fit(BoringModel())
    return "state_dict" in of_lightning.checkpoint_of(fitting, True)


@use()
def last_checkpoint(folder: Path) -> Any:
    folder = folder / str(len(list(folder.iterdir())))
    for _ in range(2):
        saver = of_lightning.FindsLastCheckpoint(folder, save_last=True)
        run = trainer(enable_checkpointing=True, callbacks=[saver], default_root_dir=folder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            run.fit(BoringModel(), ckpt_path="last")
    return run.global_step, isinstance(saver, ModelCheckpoint)


@use((None, "mine", True))
def wandb_loggers(folder: Path) -> Any:
    run, passed = SimpleNamespace(id="abc"), dict[str, Any]()
    with patch("wandb.init", lambda **settings: passed.update(settings) or run), patch("wandb.run", None):
        logger = WandbLogger(project="mine", save_dir=folder, anonymous=None)
        before = of_lightning.wandb_run(logger)
        of_lightning.wandb_settings(logger).pop("anonymous", None)
        begun = logger.experiment
        with patch("wandb.run", begun):
            return before, passed["project"], of_lightning.wandb_run(logger) is begun is run


@use()
def sigterm(_: Path) -> Any:
    fitting = trainer()
    signals.on_sigterm(fitting, lambda: None)()
    return fitting.received_sigterm


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


@use()
def command_line(_: Path) -> Any:
    """The settings, the seed and the weights of a run."""
    names = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    args = ["fit", "--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", *(f"--trainer.{name}=false" for name in names)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?!.*fl_lightning).*")
        cli = _Bare(_Sets, save_config_callback=None, seed_everything_default=5, args=[*args, "--model.size=7"])
    settings = yaml.safe_load(cli.parser.dump(cli.config, format="yaml"))["fit"]
    return cli.trainer.global_step, cli.model.drawn, cli.model.hparams["size"], settings["seed_everything"], settings["model"]


def federation(case: str, engine: str, folder: Path) -> Any:
    """Everything that is recorded of a case of ``algorithms.py``."""
    return fit(case, folder, engine).record


for _case, _engine in (
    *(("kept optimizers", "fabric"), ("hidden tensors", "trainer"), ("private examples", "fabric")),
    *(("adafed odds", "stacked"), ("kept optimizers", "trainer")),
):
    USES[partial(federation, _case, _engine)] = ...
