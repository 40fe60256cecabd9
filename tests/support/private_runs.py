"""Small federations under differential privacy, and what they write down."""

import json
from pathlib import Path

import torch
from federations import Plain, every_round, federate
from lightning.pytorch import Callback
from run_private import MODES

from fl_lightning import ClientPrivacy, ExamplePrivacy, FedAvg, FederationCallback, LocalTraining

DELTA, NO_NOISE = 1e-3, 1e-9
LEDGER = "privacy_ledger.jsonl"
LEFT: list[int] = []
"""The steps at which a turn of ``Unlucky`` fails, each once."""


def fit(folder, rounds=4, *callbacks, ckpt_path=None, module=None, flags=None, **settings):
    """Fit in a folder, with checkpoints; return the Trainer and what it logged last."""
    torch.manual_seed(0)
    flags = {"default_root_dir": str(folder), "enable_checkpointing": True, **(flags or {})}
    saves = every_round(Path(folder) / "c")
    run = federate(module or Plain(), rounds, saves, *callbacks, flags=flags, ckpt_path=ckpt_path, **settings)
    return run, logged(run)


def last(folder):
    return str(folder / "c/last.ckpt")


def lines(folder="run"):
    """Return the lines of a folder's privacy ledger."""
    logs = "lightning_logs" if Path(folder).absolute() == Path.cwd() else ""
    return [json.loads(line) for line in (Path(folder) / logs / LEDGER).read_text().splitlines()]


def clients(target=2.0, noise="central", seeded=None, extend=False, **more):
    """Return settings of a federation whose noise is solved for an epsilon of clients."""
    privacy = ClientPrivacy(0.5, None, noise, DELTA, seeded, target, extend=extend)
    return {"strategy": FedAvg("uniform"), "transforms": [privacy], **more}


def examples(target=2.0, extend=False, **more):
    """Return settings of a federation whose noise is solved for an epsilon of examples."""
    local = more.pop("local", {})
    privacy = ExamplePrivacy(1.0, delta=DELTA, target_epsilon=target, extend=extend)
    return {"local": LocalTraining(**{"max_epochs": 2, "privacy": privacy, **local}), **more}


def stop_after(rounds):
    """End a run early, as if it was stopped."""

    class Stop(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch + 1 >= rounds

    return Stop()


def logged(run):
    """Return what a Trainer logged last."""
    return {name: float(value) for name, value in run.logged_metrics.items()}


class Fails(FederationCallback):
    """Lets the client of 20 examples fail once a round, after some steps."""

    def __init__(self, after):
        self.after = after

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        LEFT[:] = [self.after]


class Unlucky(Plain):
    def training_step(self, batch, batch_idx):
        if LEFT and self.trainer.num_training_batches == 4 and batch_idx == LEFT[-1]:
            LEFT.pop()
            raise RuntimeError("bad luck")
        return super().training_step(batch, batch_idx)


def private(folder, rounds=1, mode="central", callbacks=(), **more):
    settings = {"strategy": FedAvg("uniform"), "clients_per_round": 2, **MODES[mode](), **more}
    run, logged = fit(folder, rounds, *callbacks, **settings)
    return run.lightning_module, logged
