"""Each private name of Lightning that the package uses, against the release that is installed; see ``test_compat.py``."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bare_lightning import Hook, Logs, Manual, trainer
from compat_names import relies_on
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from fl_lightning.compat import lightning as of_lightning
from fl_lightning.compat import signals
from fl_lightning.compat.lightning_cli import OpenCLI

# ---------------------------------------------------------------- optimizers


class WithSchedule(BoringModel):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 3), "interval": "step", "frequency": 2}}


@relies_on("lightning", "_configure_optimizers")
def test_configured_parts():
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    schedule = StepLR(optimizer, 1)
    given = {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}
    assert of_lightning.configured_parts(given) == ([optimizer], [schedule], "val_loss")
    assert of_lightning.configured_parts(([optimizer], [schedule])) == ([optimizer], [schedule], None)
    assert of_lightning.configured_parts([]) == ([], [], None)


@relies_on("lightning", "_configure_schedulers_automatic_opt")
def test_configurations_of_schedulers():
    """They are those that a Trainer makes."""
    module, fitting = WithSchedule(), trainer()
    fitting.fit(module)
    (own,) = of_lightning.configured(module.configure_optimizers(), module)[1]
    (theirs,) = fitting.lr_scheduler_configs
    names = ("interval", "frequency", "reduce_on_plateau", "monitor", "strict", "name")
    assert type(own) is type(theirs)
    assert [getattr(own, name) for name in names] == [getattr(theirs, name) for name in names]
    assert (own.interval, own.frequency, own.scheduler.step_size) == ("step", 2, 3)


@relies_on("lightning", "_validate_scheduler_api")
def test_a_scheduler_of_another_kind_is_refused():
    class Odd:
        def step(self) -> None: ...
        def state_dict(self) -> dict[str, Any]: ...
        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    module = BoringModel()
    with pytest.raises(MisconfigurationException, match="LRScheduler"):
        of_lightning.configured(([SGD(module.parameters(), lr=0.1)], [Odd()]), module)


@relies_on("lightning", "LightningOptimizer._strategy")
def test_stepping_through():
    seen: list[Any] = []
    strategy = SimpleNamespace(optimizer_step=lambda optimizer, closure, **kwargs: seen.append((optimizer, closure(), kwargs)))
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    wrapped = of_lightning.stepping_through(optimizer, strategy)
    wrapped.step(closure=lambda: 7, extra=1)
    assert isinstance(wrapped, LightningOptimizer)
    assert seen == [(optimizer, 7, {"extra": 1})]


@relies_on("lightning", "Strategy._lightning_optimizers")
def test_a_module_finds_its_optimizers():
    module = BoringModel()
    wrapped = LightningOptimizer(SGD(module.parameters(), lr=0.1))

    class Offers(of_lightning.OffersOptimizers):
        def wrapped_optimizers(self) -> list[LightningOptimizer]:
            return [wrapped]

    class StandIn:
        strategy = Offers()

    stand_in: Any = StandIn()
    module.trainer = stand_in
    assert module.optimizers() is wrapped


# ---------------------------------------------------------------- a Trainer and its loops


@relies_on("lightning", "_FitLoop and _TrainingEpochLoop")
def test_fresh_loops():
    """A Trainer that has them fits as a new one does."""
    fitting = trainer(max_epochs=2, min_epochs=1, max_steps=3)
    fitting.fit(BoringModel())
    assert (fitting.global_step, fitting.current_epoch) == (3, 2)
    of_lightning.fresh_loops(fitting)
    assert (fitting.global_step, fitting.current_epoch) == (0, 0)
    assert (fitting.max_epochs, fitting.min_epochs, fitting.max_steps) == (2, 1, 3)
    fitting.fit(BoringModel())
    assert fitting.global_step == 3


@relies_on("lightning", "Trainer._signal_connector")
def test_signals_are_left_alone():
    handlers: list[Any] = []
    look = Hook("on_train_start", lambda *_: handlers.append(signal.getsignal(signal.SIGTERM)))
    taken, left = trainer(callbacks=[look]), trainer(callbacks=[look])
    signals.ignore_signals(left)
    before = signal.getsignal(signal.SIGTERM)
    for fitting in (taken, left):
        fitting.fit(BoringModel())
    assert handlers[0] != before
    assert handlers[1] == before == signal.getsignal(signal.SIGTERM)


@relies_on("lightning", "_SignalConnector._sigterm_notifier_fn and received_sigterm")
def test_what_a_trainer_does_on_sigterm_is_replaced():
    heard: list[bool] = []
    tell = Hook("on_train_batch_start", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    note = Hook("on_train_batch_end", lambda fitting, *_: signals.note_sigterm(fitting))
    fitting = trainer(callbacks=[tell], max_steps=2)
    own = signals.on_sigterm(fitting, lambda: heard.append(True))
    fitting.fit(BoringModel())
    assert heard == [True, True]
    assert not fitting.received_sigterm
    own()
    of_lightning.fresh_loops(fitting)
    with pytest.raises(SIGTERMException):
        trainer(callbacks=[note]).fit(BoringModel())
    with pytest.raises(SIGTERMException):
        fitting.fit(BoringModel())
    assert heard == [True, True]


@relies_on("lightning", "the progress of fit_loop.epoch_loop's two ways to optimize")
def test_the_global_step_continues():
    module, fitting = Manual(), trainer()
    fitting.fit(module)
    assert fitting.global_step == 2
    module.automatic_optimization = True
    assert fitting.global_step == 0
    of_lightning.continue_global_step(fitting)
    assert fitting.global_step == 2


@relies_on("lightning", "fit_loop.epoch_progress")
def test_whole_epochs():
    def fail(*_: Any) -> None:
        raise ValueError("as the test wants it")

    broken, whole = trainer(callbacks=[Hook("on_train_batch_end", fail)]), trainer()
    assert not of_lightning.has_whole_epoch(whole)
    whole.fit(BoringModel())
    with pytest.raises(ValueError, match="as the test wants it"):
        broken.fit(BoringModel())
    assert of_lightning.has_whole_epoch(whole)
    assert not of_lightning.has_whole_epoch(broken)


@relies_on("lightning", "Trainer._detect_anomaly")
def test_the_flag_detect_anomaly():
    assert [of_lightning.detects_anomalies(trainer(detect_anomaly=flag)) for flag in (True, False)] == [True, False]


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("weights_only", [True, False])
@relies_on("lightning", "Trainer._checkpoint_connector.dump_checkpoint")
def test_a_checkpoint_without_a_file(tmp_path, weights_only):
    fitting = trainer()
    fitting.fit(BoringModel())
    fitting.save_checkpoint(tmp_path / "written.ckpt", weights_only=weights_only)
    written, held = torch.load(tmp_path / "written.ckpt"), of_lightning.checkpoint_of(fitting, weights_only)
    assert held.keys() == written.keys()
    assert ("optimizer_states" in held) is not weights_only
    assert all(torch.equal(value, written["state_dict"][name]) for name, value in held["state_dict"].items())


@relies_on("lightning", "ModelCheckpoint._find_last_checkpoints")
def test_where_the_last_checkpoint_is_looked_for(tmp_path):
    found: list[set[str]] = []

    class Finds(of_lightning.FindsLastCheckpoint):
        def find_last(self, trainer: Trainer) -> set[str]:
            found.append(super().find_last(trainer))
            return found[-1]

    for _ in range(2):
        saver = Finds(tmp_path, save_last=True)
        trainer(enable_checkpointing=True, callbacks=[saver], default_root_dir=tmp_path).fit(BoringModel(), ckpt_path="last")
    assert isinstance(saver, ModelCheckpoint)
    assert [{Path(path).name for path in paths} for paths in found] == [set(), {"last.ckpt"}]


@relies_on("lightning", "_restricted_classmethod")
def test_a_method_of_the_class_only():
    class Loads:
        @of_lightning.class_only
        def load(cls, number: int) -> Any:  # noqa: N805
            return cls, number

    assert Loads.load(3) == (Loads, 3)
    with pytest.raises(TypeError, match="cannot be called on an instance"):
        Loads().load(3)


# ---------------------------------------------------------------- modules and logging


@relies_on("lightning", "_FxValidator.check_logging_and_get_default_levels")
def test_levels_of_logging():
    assert of_lightning.logging_levels("training_step", None, None) == (True, False)
    assert of_lightning.logging_levels("validation_step", None, None) == (False, True)
    assert of_lightning.logging_levels("training_step", False, True) == (False, True)
    with pytest.raises(MisconfigurationException, match=r"can't `self\.log"):
        of_lightning.logging_levels("on_fit_start", None, None)


@relies_on("lightning", "connectors.logger_connector.result.warning_cache")
def test_advice_on_logging():
    said: list[str] = []

    class Cache(WarningCache):
        def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
            said.append(message)

    class Whole(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("whole", torch.tensor(3))
            return super().training_step(batch, batch_idx)

    cache = Cache()
    before = of_lightning.swap_logging_advice(cache)
    try:
        trainer().fit(Whole())
    finally:
        assert of_lightning.swap_logging_advice(before) is cache
    assert "You called `self.log('whole', ...)`" in said[0]


@relies_on("lightning", "_auto_add_worker_init_fn")
def test_seeds_of_workers(monkeypatch):
    loader = DataLoader([1, 2])
    for asked, seeded in (("0", False), ("1", True)):
        monkeypatch.setenv("PL_SEED_WORKERS", asked)
        of_lightning.seed_workers(loader, 0)
        assert (loader.worker_init_fn is not None) is seeded


@relies_on("lightning", "WandbLogger._experiment and WandbLogger._wandb_init")
def test_runs_of_wandb(monkeypatch, tmp_path):
    passed: list[dict[str, Any]] = []
    run = SimpleNamespace(id="abc")
    monkeypatch.setattr("wandb.init", lambda **settings: passed.append(settings) or run)
    monkeypatch.setattr("wandb.run", None)
    logger = WandbLogger(project="mine", save_dir=tmp_path, anonymous=None)
    settings = of_lightning.wandb_settings(logger)
    assert (settings["project"], settings["anonymous"]) == ("mine", None)
    del settings["anonymous"]
    assert logger.experiment is run
    assert (passed[0]["project"], "anonymous" in passed[0]) == ("mine", False)


# ---------------------------------------------------------------- the command line


@relies_on("lightning", "the private steps of LightningCLI, or its _subcommand_method_arguments")
def test_steps_of_the_command_line(tmp_path):
    steps: list[str] = []

    class Noted(OpenCLI):
        def prepare_subcommand(self, klass: type, subcommand: str, **kwargs: Any) -> Any:
            steps.append(f"prepare {subcommand}")
            if subcommand != "fit":
                return self.bare_subcommand(subcommand, **kwargs)
            return super().prepare_subcommand(klass, subcommand, **kwargs)

        def read_checkpoint_settings(self) -> None:
            steps.append("read")
            super().read_checkpoint_settings()

        def set_seed(self) -> None:
            steps.append("seed")
            super().set_seed()

        def run_command(self, subcommand: str) -> None:
            steps.append(f"run {subcommand}")
            super().run_command(subcommand)

    off = ["logger", "enable_progress_bar", "enable_model_summary"]
    args = ["fit", "--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", *(f"--trainer.{name}=false" for name in off)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cli = Noted(BoringModel, save_config_callback=None, seed_everything_default=5, args=args)
    assert steps == [*(f"prepare {name}" for name in OpenCLI.subcommands()), "read", "seed", "run fit"]
    assert cli.trainer.global_step == 1
    assert torch.initial_seed() == 5


@relies_on("lightning", "_ResultCollection and _ResultMetric")
def test_what_is_logged_in_place_is_what_is_logged():
    found = []
    for in_place in (False, True):
        torch.manual_seed(0)
        fitting = trainer(max_epochs=2, limit_train_batches=3, limit_val_batches=2)
        if in_place:
            of_lightning.in_place_results(fitting)
        fitting.fit(Logs())
        found.append({name: float(value) for name, value in fitting.callback_metrics.items()})
    assert found[0] == found[1]
    assert {"loss_step", "loss_epoch", "largest", "mean"} <= found[0].keys()


@relies_on("lightning", "_ResultMetric.to")
def test_a_logged_value_moves_only_to_another_device():
    fitting = trainer()
    of_lightning.in_place_results(fitting)
    results = fitting.fit_loop.epoch_loop._results
    results.log("training_step", "loss", torch.tensor(2.0))
    (metric,) = results.values()
    value = metric.value
    assert metric.to("cpu").value is value
    results.log("training_step", "loss", torch.tensor(1.0, device="meta"))
    assert metric.value.device == metric.cumulated_batch_size.device == torch.device("meta")
