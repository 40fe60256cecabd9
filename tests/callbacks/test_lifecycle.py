"""Each thing that a Lightning user knows does to rounds what it does to epochs."""

import copy
import time
from datetime import timedelta

import lightning as L
import pytest
import torch
from engine_runs import Collect, variant
from federations import Blobs, Cohorts, Consecutive, Plain, blobs, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from shared_runs import rows_of
from torch.utils.data import TensorDataset

from fl_lightning import (
    AdaFed,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FederationProgressBar,
    IIDPartitioner,
    LocalTraining,
)


class Rounds(FederationCallback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        self.heard.append(("round start", round_idx, cohort))

    def on_client_start(self, trainer, pl_module, round_idx, client):
        self.heard.append(("client start", round_idx, client))

    def on_client_end(self, trainer, pl_module, update):
        assert torch.isfinite(update.state).all()
        self.heard.append(("client end", update.round_idx, update.client))

    def on_aggregated(self, trainer, pl_module, updates):
        assert sum(update.share for update in updates) == pytest.approx(1.0)
        assert all(update.state is None for update in updates)
        self.heard.append(("aggregated", updates[0].round_idx, tuple(u.client for u in updates)))

    def on_round_end(self, trainer, pl_module, round_idx):
        assert "val_acc" in trainer.callback_metrics
        self.heard.append(("round end", round_idx, trainer.global_step))


def test_hooks_come_in_order():
    rounds = Rounds()
    federate(Plain(), 2, rounds)
    expected = []
    for r in range(2):
        expected.append(("round start", r, (0, 1, 2)))
        for client in (1, 2, 0):  # the largest first
            expected += [("client start", r, client), ("client end", r, client)]
        expected += [("aggregated", r, (0, 1, 2)), ("round end", r, r + 1)]
    assert rounds.heard == expected


def test_early_stopping_counts_rounds():
    """As the module's own callback, which has the first round and one without improvement; and by what clients logged."""
    for module, stop, expected in (
        (variant(configure_callbacks=lambda self: [EarlyStopping("val_acc", mode="max", patience=1, min_delta=1.0)]), [], 2),
        (Plain, [EarlyStopping("train_loss", mode="min", stopping_threshold=10.0)], 1),
    ):
        rounds = Cohorts()
        assert federate(module(), 20, rounds, *stop).global_step == len(rounds.seen) == expected


def test_max_time_ends_after_a_round():
    class Slow(Cohorts):
        def on_client_start(self, *args):
            time.sleep(0.2)

    rounds = Slow()
    run = federate(Plain(), 1000, rounds, flags={"max_time": timedelta(seconds=1)})
    assert 0 < len(rounds.seen) < 1000
    assert run.global_step == len(rounds.seen)  # no round was left half done


def test_validation_is_every_n_rounds_and_limited():
    rounds, batches = [], []
    seen = L.Callback()
    seen.on_validation_end = lambda trainer, pl_module: rounds.append(trainer.current_epoch)
    seen.on_validation_batch_end = lambda *args, **kwargs: batches.append(1)
    federate(Plain(), 5, seen, data=Blobs(), flags={"check_val_every_n_epoch": 2, "limit_val_batches": 1})
    assert (rounds, len(batches)) == ([1, 3], 2)


def test_max_steps_counts_rounds():
    assert federate(Plain(), -1, flags={"max_steps": 2}).global_step == 2


def test_loggers_have_a_row_for_every_round_and_the_servers_rate(tmp_path):
    event = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = [kind(tmp_path, name="", version="") for kind in (CSVLogger, TensorBoardLogger)]
    own = {"strategy": AdaFed("val_acc"), "server_optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}
    federate(Plain(), 3, LearningRateMonitor("epoch"), flags={"logger": loggers}, **own)
    rows = rows_of(tmp_path / "metrics.csv")
    for name in ("val_acc", "train_loss", "client_weight/0", "client_score/2", "client_train_acc/1", "federation/bytes_up"):
        assert [float(row["round"]) for row in rows if row[name]] == [0, 1, 2], name
    assert all([row["step"] for row in rows if row[name]] == ["0", "1", "2"] for name in ("val_acc", "client_weight/0"))
    logged = {name: [float(row[name]) for row in rows if row.get(name)] for name in rows[0]}
    assert logged["client_examples/1"] == [20, 20, 20]
    assert logged["lr-SGD"] == [0.5, 0.5, 0.5]
    assert set(logged["federation/bytes_down"]) == {67 * 4 * 3}  # 4x8+8 and 8x3+3 parameters of 4 bytes, three clients
    events = event.EventAccumulator(str(tmp_path))
    events.Reload()
    for name in ("val_acc", "client_loss/0", "federation/loss"):
        assert len(events.Scalars(name)) == 3
    assert [scalar.value for scalar in events.Scalars("round")][-1] == 2


# ------------------------------------------------------------------ what modules do


def test_a_second_fit_follows_a_changed_batch_size():
    collect, base = Collect(), Blobs()
    data = FederatedDataModule(base, IIDPartitioner(2))
    for base.batch_size in (5, 20):
        trainer(1, FederatedOrchestrator(), collect).fit(Plain(), data)
    assert [update.num_steps for update in collect.updates] == [4, 4, 1, 1]


def test_a_second_fit_goes_on_once_max_epochs_is_raised():
    whole = Plain()
    split = copy.deepcopy(whole)
    federate(whole, 4)
    run, data = (
        trainer(2, FederatedOrchestrator(local=LocalTraining(max_epochs=2))),
        FederatedDataModule(Blobs(), Consecutive()),
    )
    for run.fit_loop.max_epochs in (2, 4):
        run.fit(split, data)
    assert run.global_step == 4
    assert same_bits(weights(whole), weights(split))


# ------------------------------------------------------------------ the bar


def test_progress_bar_shows_rounds_and_clients_on_a_terminal_alone(monkeypatch, capsys):
    federate(Plain(), 1, flags={"enable_progress_bar": True})
    captured = capsys.readouterr()
    assert "round/s" not in captured.err + captured.out
    assert "Epoch" not in captured.err + captured.out
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run = trainer(2, FederatedOrchestrator(), enable_progress_bar=True)
    sets = {name: TensorDataset(*blobs(10, 1)) for name in ("north", "south")}
    run.fit(Plain(), FederatedDataModule.from_clients(sets))
    assert not any(type(callback) is FederationProgressBar for callback in run.callbacks)  # the Trainer's own is back
    text = capsys.readouterr().err
    assert all(word in text for word in ("Round", "2/2", "client", "training=south"))


def test_a_bar_of_the_users_own_is_left_alone():
    own = type("Mine", (TQDMProgressBar,), {})()
    assert federate(Plain(), 1, own, flags={"enable_progress_bar": True}).progress_bar_callback is own
