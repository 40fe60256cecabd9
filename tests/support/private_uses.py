"""The smallest use of each private name of other packages; each returns its result. See ``test_private_names.py``."""

import argparse
import copy
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
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
from bare_lightning import Hook, Logs, Manual, Measured, trainer
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.compile import from_compiled
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch import distributed, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader

from fl_lightning.compat import jsonargparse as of_jsonargparse
from fl_lightning.compat import light_steps, python, signals
from fl_lightning.compat import lightning as of_lightning
from fl_lightning.compat import torch as of_torch
from fl_lightning.compat import torchmetrics as of_torchmetrics
from fl_lightning.compat import wandb as of_wandb
from fl_lightning.compat.lightning_cli import OpenCLI
from fl_lightning.compat.lightning_hooks import lean_hooks

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


@use((True, False))
def changes_in_place(_: Path) -> Any:
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    before, again = of_torch.times_changed(tensor), of_torch.times_changed(tensor)
    tensor[1] = 1
    return before == again, before == of_torch.times_changed(tensor)


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


def network() -> nn.Module:
    found = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False)))
    found[2][1].weight = found[0].weight  # found once, under its first name
    found.register_buffer("kept", torch.zeros(2), persistent=False)
    found[1].register_buffer("own", torch.ones(1), persistent=False)
    return found


@use(
    (
        dict.fromkeys(("", "0", "1", "2", "2.0", "2.1")),
        [{"0": "0", "1": "1", "2": "2"}, {}, {}, {"0": "2.0", "1": "2.1"}, {}, {}],
    )
)
def parts(_: Path) -> Any:
    module = network()
    names = {id(part): name for name, part in module.named_modules()}
    children = [{name: names[id(child)] for name, child in of_torch.children_of(part).items()} for part in module.modules()]
    found = of_torch.parts_of(module)
    assert all(names[id(part)] == name for name, part in found.items())
    return dict.fromkeys(found), children


@use(
    (
        ["0.weight", "0.bias", "1.weight", "1.bias"],
        [["kept"], [], ["1.running_mean", "1.running_var", "1.num_batches_tracked", "1.own"], [], [], []],
        [["kept"], [], ["1.own"], [], [], []],
    )
)
def tensors_of_modules(_: Path) -> Any:
    module = network()
    names = {id(one): name for name, one in (*module.named_parameters(), *module.named_buffers())}
    buffers, unsaved = (
        [[names[id(one)] for one in find(part).values()] for part in module.modules()]
        for find in (of_torch.buffers_of, of_torch.unsaved_buffers)
    )
    parameters = of_torch.parameters_of(module)
    assert all(names[id(one)] == name for name, one in parameters.items())
    return list(parameters), buffers, unsaved


@use([True, True, True, True, False, False, True, True])
def batch_norms(_: Path) -> Any:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d, nn.LayerNorm)
    return [of_torch.is_batch_norm(part) for part in (*(kind(2) for kind in kinds), nn.LazyBatchNorm2d(), network()[1])]


@use(
    (
        [[1, 1, 1, 1], [1, 0], [0, 1], [1, 0]],
        ["accumulated", "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook", "gradient"],
        *(True, False),
    )
)
def hooks(_: Path) -> Any:
    """The hooks that are found, and that removing them from the registers removes them."""
    module, frozen, seen = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), []
    for register in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        getattr(module, f"register_{register}")(lambda *_, name=register: seen.append(name))
    for parameter in (module.weight, frozen):
        parameter.register_hook(lambda _: seen.append("gradient"))
    module.bias.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    frozen.requires_grad_(False)
    found = [of_torch.hooks_of(owner) for owner in (module, module.weight, module.bias, frozen)]
    counts = [[len(register or {}) for register in registers] for registers in found]
    x = torch.ones(1, 1, requires_grad=True)
    module(x).backward()
    for register in (one for registers in found for one in registers if one is not None):
        register.clear()
    called = list(seen)
    module(x).backward()
    return counts, sorted(called), len(called) == len(seen), frozen.requires_grad


Point = namedtuple("Point", "x y")


@use()
def trees(_: Path) -> Any:
    tree = {
        "a": [1, (2, Point(3, None))],
        "b": OrderedDict(c=deque([4], maxlen=2)),
        "d": defaultdict(list, e=[5, []]),
        "f": "g",
    }
    leaves, spec = of_torch.tree_flatten(tree)
    other = of_torch.tree_flatten({"a": [1, 2]})[1]
    again = of_torch.tree_unflatten([str(leaf) for leaf in leaves], spec)
    doubled = of_torch.tree_map(lambda leaf: [leaf], tree)
    kinds = [type(one) for one in (again["a"][1][1], again["b"], again["b"]["c"], again["d"], again["b"]["c"].maxlen)]
    return leaves, again, doubled, kinds, spec == of_torch.tree_flatten(tree)[1], spec == other, str(spec) == str(other)


def _note(found: list[Any], *_: Any) -> None:
    found.append("seen")


@use()
def light_training(_: Path) -> Any:
    """Weights after light steps, what a hook saw, and whether hooks are found."""
    torch.manual_seed(0)
    found: list[Any] = []
    for watched in (False, True):
        layer = nn.Linear(3, 1)
        optimizer = SGD(layer.parameters(), lr=0.1)
        if watched:
            optimizer.register_step_post_hook(partial(_note, found))
        light_steps.step_lightly(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            light_steps.backward_lightly(layer(torch.ones(2, 3)).square().mean())
            optimizer.step()
        found += [layer.weight.tolist(), light_steps.has_step_hooks(optimizer)]
    return found


@use({"weight", "mean_value"})
def states(_: Path) -> Any:
    return of_torchmetrics.state_names(torchmetrics.MeanMetric())


@use()
def summed(_: Path) -> Any:
    return of_torchmetrics.summed_states(torchmetrics.MeanMetric())


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
def dashboard(_: Path) -> Any:
    model = types.SimpleNamespace(model_dump_json=lambda **_: "{}")
    return of_wandb.workspace_specification(types.SimpleNamespace(_to_model=lambda: model))


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


class Holds:
    def __init__(self) -> None:
        self.size = 2
        self.reference = weakref.ref(self)
        self.function = lambda: self.size
        self.again = self.function


@use((5, True, True, 2, True, True, True))
def copies(_: Path) -> Any:
    """Whether the copy's function and reference mean the copy, and the original's the original."""
    holds = Holds()

    def of_function(function: Any, memo: dict[int, Any]) -> Any:
        if function is not holds.function:
            return function
        own = copy.deepcopy(holds, memo)
        memo[id(function)] = found = lambda: own.size
        return found

    def of_reference(reference: Any, memo: dict[int, Any]) -> Any:
        return weakref.ref(copy.deepcopy(holds, memo)) if reference is holds.reference else reference

    with python.copying(of_function, of_reference) as memo_of:
        found = copy.deepcopy(holds, memo_of({}))
    found.size = 5
    after = copy.deepcopy(holds)
    return (
        found.function(),
        found.again is found.function,
        found.reference() is found,
        holds.function(),
        holds.reference() is holds,
        after.function is holds.function,
        copies is copy.deepcopy(copies),
    )


class Takes:
    def __init__(self, size: int | None = 3, name: str = "me") -> None:
        """Take some settings."""


@use(([["help", "takes", "takes.size", "takes.name"], ["help", "x"]], True, None))
def options(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_class_arguments(Takes, "takes")
    outer = ArgumentParser()
    inner = outer.add_subcommands()
    inner.add_subcommand("go", parser)
    plain = argparse.ArgumentParser()
    plain.add_argument("--x", type=int)
    found = [[action.dest for action in of_jsonargparse.actions_of(one)] for one in (parser, plain)]
    nested = [of_jsonargparse.subcommand_parsers(one) for one in (outer, parser)]
    return found, nested[0] == {"go": parser}, nested[1]


@use("go:\n  takes:\n    size: 3\n    name: me\n")
def found_options(_: Path) -> Any:
    inner, outer = ArgumentParser(), ArgumentParser()
    inner.add_class_arguments(Takes, "takes")
    outer.add_subcommands().add_subcommand("go", inner)
    with of_jsonargparse.remembering_options():
        return outer.dump(outer.parse_args(["go"]))


@use()
def defaults_of_classes(_: Path) -> Any:
    inner, outer = ArgumentParser(), ArgumentParser()
    inner.add_argument("--stop", type=EarlyStopping)
    outer.add_subcommands().add_subcommand("go", inner)
    with of_jsonargparse.remembering_options():
        return outer.dump(outer.parse_args(["go", "--stop=EarlyStopping", "--stop.monitor=x"]))


@use()
def lists(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--rows", type=list[list[int]])
    parser.add_argument("--stops", type=list[EarlyStopping])
    stops = '[{"class_path": "EarlyStopping", "init_args": {"monitor": "x"}}]'
    with of_jsonargparse.remembering_options():
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


@use()
def encodings(folder: Path) -> Any:
    (folder / "own.yaml").write_bytes("name: Zürich\n".encode())
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--name")
    with patch("locale.getpreferredencoding", return_value="ascii"), of_jsonargparse.reading_utf8():
        return reader.parse_path(folder / "own.yaml").name


class EarlyStop(EarlyStopping):
    pass


@use()
def names_of_classes(_: Path) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--stop", type=EarlyStopping)
    with of_jsonargparse.preferring({"EarlyStop": f"{EarlyStop.__module__}.EarlyStop"}):
        return parser.parse_args([f"--stop={EarlyStop.__module__}.EarlyStop", "--stop.monitor=x"]).stop.class_path


SLURM = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "job", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@use()
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


@use()
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


@use()
def logged(_: Path) -> Any:
    torch.manual_seed(0)
    fitting = trainer(max_epochs=2, limit_train_batches=3, limit_val_batches=2)
    of_lightning.in_place_results(fitting)
    with lean_hooks():
        fitting.fit(Logs())
    return {name: float(value) for name, value in fitting.callback_metrics.items()}


@use()
def advice(_: Path) -> Any:
    """The advice is Lightning's own again after the swap back."""
    cache = WarningCache()
    before = of_lightning.swap_logging_advice(cache)
    of_lightning.swap_logging_advice(before)
    return trainer().state.fn


@use([64])
def validation_set(_: Path) -> Any:
    torch.manual_seed(0)
    seen: list[Any] = []

    def look(fitting: Any, module: Any) -> None:
        loaders = of_lightning.validation_loaders(fitting)
        seen.append(len(loaders.dataset))

    trainer(callbacks=[Hook("on_fit_start", look)]).fit(BoringModel())
    return seen


@use((None, True, True, signal.SIGUSR1))
def slurm(_: Path) -> Any:
    found = [of_lightning.slurm_environment(trainer())]
    with patch.dict(os.environ, SLURM), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*srun.*")
        found.append(of_lightning.slurm_environment(trainer()))
    return found[0], type(found[1]) is SLURMEnvironment, found[1].auto_requeue, found[1].requeue_signal


@use(([True, False, False], False))
def flags(_: Path) -> Any:
    ddp = [{"sync_batchnorm": True, "strategy": "ddp", "devices": 2}, {"strategy": "ddp", "devices": 2}, {}]
    return [of_lightning.synchronises_batch_norm(trainer(**flag)) for flag in ddp], of_lightning.detects_anomalies(trainer())


@use()
def whole_epochs(_: Path) -> Any:
    whole = trainer()
    before = of_lightning.has_whole_epoch(whole)
    whole.fit(BoringModel())
    return before, of_lightning.has_whole_epoch(whole)


@use()
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


@use()
def checkpoint(_: Path) -> Any:
    torch.manual_seed(0)
    fitting = trainer()
    fitting.fit(BoringModel())
    found = [of_lightning.checkpoint_of(fitting, weights_only) for weights_only in (True, False)]
    return [(sorted(one), one["state_dict"]["layer.weight"].tolist()) for one in found]


@use([(True, True, AsyncCheckpointIO), (True, True, TorchCheckpointIO)])
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


@use(([False, True, False], True))
def compiled(_: Path) -> Any:
    module = from_compiled(torch.compile(BoringModel(), backend="eager"))
    copied = copy.copy(module)
    vars(copied).update(vars(module))
    of_lightning.forget_compiled(copied)
    found = [of_lightning.is_compiled(one) for one in (BoringModel(), module, copied)]
    return found, copied.training_step.__func__ is BoringModel.training_step


@use(["mean"])
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


@use((None, True))
def wandb_loggers(folder: Path) -> Any:
    run = SimpleNamespace(id="abc")
    with patch("wandb.init", lambda **settings: run), patch("wandb.run", None):
        logger = WandbLogger(project="mine", save_dir=folder)
        before = of_lightning.wandb_run(logger)
        of_lightning.wandb_settings(logger).pop("anonymous", None)
        begun = logger.experiment
        with patch("wandb.run", begun):
            return before, of_lightning.wandb_run(logger) is begun is run


@use()
def handlers(_: Path) -> Any:
    """Handlers after a fit, and the weights."""
    torch.manual_seed(0)
    before, fitting, module = signal.getsignal(signal.SIGTERM), trainer(), BoringModel()
    signals.ignore_signals(fitting)
    fitting.fit(module)
    return signal.getsignal(signal.SIGTERM) == before, module.layer.weight.tolist()


@use()
def sigterm(_: Path) -> Any:
    fitting = trainer()
    signals.on_sigterm(fitting, lambda: None)()
    return fitting.received_sigterm


@use()
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


@use()
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
