"""Each thing that a Lightning user knows does to rounds what it does to epochs."""

from __future__ import annotations

import copy
import csv
import functools
import logging
import time
import weakref
from datetime import timedelta

import lightning as L
import pytest
import torch
from federations import Blobs, Plain, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from fl_lightning import (
    AdaFed,
    BestCheckpoint,
    CheckpointError,
    ClassificationTask,
    F1WeightedCrossEntropy,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FederationProgressBar,
    IIDPartitioner,
    LastCheckpoint,
    LocalTraining,
    Scaffold,
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
        assert update.state is not None
        assert torch.isfinite(update.state).all()
        self.heard.append(("client end", update.round_idx, update.client))

    def on_aggregated(self, trainer, pl_module, updates):
        assert sum(update.share for update in updates) == pytest.approx(1.0)
        assert all(update.state is None for update in updates)
        self.heard.append(("aggregated", updates[0].round_idx, tuple(u.client for u in updates)))

    def on_round_end(self, trainer, pl_module, round_idx):
        assert "val_acc" in trainer.callback_metrics
        self.heard.append(("round end", round_idx, trainer.global_step))

    @property
    def count(self):
        return sum(what == "round start" for what, *_ in self.heard)


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
    rounds = Rounds()
    stop = EarlyStopping("val_acc", mode="max", patience=2, min_delta=1.0)  # nothing improves by 1
    run = federate(Plain(), 20, rounds, stop)
    assert rounds.count == run.global_step == 3  # the first, and two without improvement


def test_early_stopping_on_what_the_clients_logged():
    rounds = Rounds()
    federate(Plain(), 20, rounds, EarlyStopping("train_loss", mode="min", stopping_threshold=10.0))
    assert rounds.count == 1


def test_max_time_ends_after_a_round():
    class Slow(Rounds):
        def on_client_start(self, *args):
            time.sleep(0.2)

    rounds = Slow()
    run = federate(Plain(), 1000, rounds, flags={"max_time": timedelta(seconds=1)})
    assert 0 < rounds.count < 1000
    assert run.global_step == rounds.count  # no round was left half done


def test_check_val_every_n_epoch_counts_rounds():
    class Validations(L.Callback):
        rounds = []

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self.rounds.append(trainer.current_epoch)

    federate(Plain(), 5, Validations(), flags={"check_val_every_n_epoch": 2})
    assert Validations.rounds == [1, 3]


def test_limit_val_batches_limits_the_servers_set():
    class Batches(L.Callback):
        seen = 0

        def on_validation_batch_end(self, trainer, *args, **kwargs):
            self.seen += not trainer.sanity_checking

    batches = Batches()
    federate(Plain(), 2, batches, flags={"limit_val_batches": 2})
    assert batches.seen == 4


def test_fast_dev_run_is_one_round_of_one_batch():
    steps = []

    class Steps(FederationCallback):
        def on_client_end(self, trainer, pl_module, update):
            steps.append(update.num_steps)

    run = federate(Plain(), 7, Steps(), flags={"fast_dev_run": True})
    assert run.global_step == 1
    assert steps == [1, 1, 1]


def test_max_steps_counts_rounds():
    assert federate(Plain(), -1, flags={"max_steps": 2}).global_step == 2


def test_csv_logger_has_a_row_of_metrics_for_every_round(tmp_path):
    federate(Plain(), 3, flags={"logger": CSVLogger(tmp_path, name="", version="")}, strategy=AdaFed("val_acc"))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    for name in ("val_acc", "train_loss", "client_weight/0", "client_score/2", "client_train_acc/1", "federation/bytes_up"):
        assert [float(row["round"]) for row in rows if row[name]] == [0, 1, 2], name
    sizes = [float(row["client_examples/1"]) for row in rows if row["client_examples/1"]]
    assert sizes == [20, 20, 20]
    # 4x8+8 and 8x3+3 parameters of 4 bytes, to and from three clients
    assert {float(row["federation/bytes_down"]) for row in rows if row["federation/bytes_down"]} == {67 * 4 * 3}


def test_tensorboard_logger_counts_rounds(tmp_path):
    event = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    federate(Plain(), 3, flags={"logger": TensorBoardLogger(tmp_path, name="", version="")})
    events = event.EventAccumulator(str(tmp_path))
    events.Reload()
    for name in ("val_acc", "client_loss/0", "federation/loss"):
        assert len(events.Scalars(name)) == 3
    assert [scalar.value for scalar in events.Scalars("round")][-1] == 2


def test_learning_rate_monitor_shows_the_servers_rate(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    federate(
        Plain(),
        2,
        LearningRateMonitor("epoch"),
        flags={"logger": logger},
        server_optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
    )
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [float(row["lr-SGD"]) for row in rows if row.get("lr-SGD")] == [0.5, 0.5]


def test_learning_rates_decay_over_rounds():
    class Rates(L.Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    seen = []
    # deep copies of the callback share `seen`, a closure
    federate(Plain(lr=0.4), 3, local=LocalTraining(lr_decay=0.5, callbacks=[Rates()]), clients_per_round=1)
    assert seen == pytest.approx([0.4, 0.2, 0.1])


def test_a_schedule_within_a_round_starts_anew_and_decays():
    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.4)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]

    class Rates(L.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    seen = []
    federate(
        Scheduled(),
        2,
        local=LocalTraining(max_epochs=2, lr_decay=0.5, callbacks=[Rates()], progress="round"),
        clients_per_round=1,
    )
    assert seen == pytest.approx([0.4, 0.04, 0.2, 0.02])


def test_the_modules_own_training_hooks_belong_to_the_clients():
    calls = []

    class Hooked(Plain):
        def on_train_epoch_end(self):
            calls.append(self.trainer.max_epochs)

        def on_before_optimizer_step(self, optimizer):
            calls.append("step")

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0] * 1, batch[1]

    federate(Hooked(), 1, local=LocalTraining(max_epochs=3))
    assert set(calls) == {3, "step"}  # never the outer Trainer's 1
    assert calls.count(3) == 9


def test_the_modules_callbacks_belong_to_the_federation():
    class Configured(Plain):
        def configure_callbacks(self):
            return [EarlyStopping("val_acc", mode="max", patience=1, min_delta=1.0)]

    assert federate(Configured(), 9).global_step == 2


def test_a_module_reads_attributes_of_its_own_datamodule():
    class Data(Blobs):
        scale = 0.5

    class Reads(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * self.trainer.datamodule.scale

        def on_validation_start(self):
            assert self.trainer.datamodule.scale == 0.5

    assert federate(Reads(), 1, data=Data(), strategy=AdaFed("val_acc")).global_step == 1


def test_networks_built_in_setup_or_configure_model():
    class Late(Plain):
        def __init__(self, hook):
            super().__init__()
            self.build = hook
            del self.net

        def _make(self):
            if not hasattr(self, "net"):
                self.net = Plain().net

        def setup(self, stage):
            if self.build == "setup":
                self.net = Plain().net  # anew each time, as some do: the clients must still get the server's weights

        def configure_model(self):
            if self.build == "configure_model":
                self._make()

    class Scores(FederationCallback):
        def on_client_end(self, trainer, pl_module, update):
            scores.append(update.score)

    results = []
    for hook in ("setup", "configure_model"):
        scores = []
        L.seed_everything(0, verbose=False)
        module = Late(hook)
        run = federate(module, 3, Scores(), strategy=AdaFed("val_acc"))
        assert run.global_step == 3
        assert min(scores[-3:]) > 0.5  # the trained networks were scored, not new ones
        results.append(float(run.callback_metrics["val_acc"]))
    assert results[0] == results[1] > 0.5


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_inner_trainers_say_nothing(package, capfd, caplog, monkeypatch):
    """The package ``pytorch_lightning``, imported by others, gives Lightning its own logger."""
    monkeypatch.setattr("lightning_utilities.core.rank_zero.log", logging.getLogger(f"{package}.utilities.rank_zero"))
    with caplog.at_level(logging.INFO):
        federate(Plain(), 1)
        one = len(caplog.records)
        caplog.clear()
        federate(Plain(), 1, data=Blobs(n=60), partitioner=IIDPartitioner(20))
    assert len(caplog.records) == one  # the outer Trainer's own announcements
    text = "".join(capfd.readouterr())
    assert text.count("Trainer.fit") <= 2


def test_warnings_of_the_users_module_are_heard():
    class Warns(Plain):
        def on_train_start(self):
            import warnings

            warnings.warn("mine, about the data", stacklevel=1)

    with pytest.warns(UserWarning, match="mine, about the data"):
        assert federate(Warns(), 1).global_step == 1


def test_progress_bar_shows_rounds_and_clients_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run = federate(Plain(), 2, flags={"enable_progress_bar": True})
    assert not any(type(callback) is FederationProgressBar for callback in run.callbacks)  # the Trainer's own is back
    text = capsys.readouterr().err
    assert "Round" in text
    assert "2/2" in text
    assert "client" in text
    assert "training=" in text


def test_progress_bar_is_quiet_elsewhere(capsys):
    federate(Plain(), 2, flags={"enable_progress_bar": True})
    captured = capsys.readouterr()
    assert "round/s" not in captured.err + captured.out
    assert "Epoch" not in captured.err + captured.out


def test_a_bar_of_the_users_own_is_left_alone():
    class Mine(TQDMProgressBar):
        pass

    run = trainer(1, FederatedOrchestrator(), Mine(), enable_progress_bar=True)
    run.fit(Plain(), FederatedDataModule(Blobs(), IIDPartitioner(3)))
    assert type(run.progress_bar_callback) is Mine


def test_a_compiled_module_trains_its_clients():
    module = Plain()
    before = weights(module)
    run = federate(torch.compile(module, backend="eager"), 1)
    assert run.global_step == 1
    assert not torch.equal(weights(module)["net.0.weight"], before["net.0.weight"])


def test_methods_and_partials_that_point_to_the_module_itself():
    """In a copy they must point to the copy: else gradients would land on the server's parameters."""

    class Pointing(Plain):
        def __init__(self):
            super().__init__()
            self.loss_fn = functools.partial(self._loss, factor=2.0)
            self.predict = self.net_forward

        def net_forward(self, x):
            return self.net(x)

        def _loss(self, batch, factor):
            return factor * torch.nn.functional.cross_entropy(self.predict(batch[0]), batch[1])

        def training_step(self, batch, batch_idx):
            return self.loss_fn(batch)

    module = Pointing()
    before = weights(module)
    federate(module, 1)
    assert not torch.equal(weights(module)["net.0.weight"], before["net.0.weight"])
    assert module.net[0].weight.grad is None


def test_clients_find_a_logger_where_the_trainer_has_one(tmp_path):
    class Logs(Plain):
        def training_step(self, batch, batch_idx):
            self.logger.log_metrics({"mine": 1.0}, step=0)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.logger.experiment.add_image("picture", 0)
            super().validation_step(batch, batch_idx)

    class Pictures(CSVLogger):
        @property
        def experiment(self):
            experiment = super().experiment
            experiment.add_image = lambda *args: None
            return experiment

    logger = Pictures(tmp_path, name="", version="")
    assert federate(Logs(), 1, flags={"logger": logger}, strategy=AdaFed("val_acc")).global_step == 1


def test_constant_and_large_buffers():
    """A mask of -inf, complex rotations and the variance of raw data, all persistent."""

    class Buffers(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((3,), float("-inf")))
            self.register_buffer("rotation", torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])))
            self.register_buffer("variance", torch.tensor([3e9]))

    module = Buffers()
    rotation = module.rotation.clone()
    federate(module, 2)
    assert torch.equal(module.mask, torch.full((3,), float("-inf")))
    assert torch.equal(module.rotation, rotation)
    assert module.variance.item() == 3e9


@pytest.mark.parametrize("progress", ["round", "run"])
@pytest.mark.parametrize("schedule", ["OneCycleLR", "CyclicLR", "SequentialLR"])
def test_decay_reaches_every_kind_of_schedule(schedule, progress):
    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            of = torch.optim.lr_scheduler
            scheduler = {
                "OneCycleLR": lambda: of.OneCycleLR(optimizer, max_lr=0.4, total_steps=30),
                "CyclicLR": lambda: of.CyclicLR(optimizer, base_lr=0.1, max_lr=0.4, step_size_up=4),
                "SequentialLR": lambda: of.SequentialLR(
                    optimizer, [of.ConstantLR(optimizer, 0.5, 2), of.StepLR(optimizer, 2)], milestones=[2]
                ),
            }[schedule]()
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    class Rates(FederationCallback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen.append(optimizer.param_groups[0]["lr"])

    found = []
    for decay in (1.0, 0.5):
        seen = []
        local = LocalTraining(lr_decay=decay, callbacks=[Rates()], progress=progress)
        federate(Scheduled(), 2, partitioner=IIDPartitioner(2), local=local, clients_per_round=1)
        found.append((seen[: len(seen) // 2], seen[len(seen) // 2 :]))
    (first, second), (decayed_first, decayed_second) = found
    assert len(first) == len(second) >= 4
    assert decayed_first == first
    assert decayed_second == pytest.approx([rate / 2 for rate in second])
    assert (second == first) == (progress == "round")


def test_a_second_fit_follows_a_changed_batch_size():
    steps = []

    class Steps(FederationCallback):
        def on_client_end(self, trainer, pl_module, update):
            steps.append(update.num_steps)

    base = Blobs()
    data = FederatedDataModule(base, IIDPartitioner(2))
    for base.batch_size in (5, 20):
        trainer(1, FederatedOrchestrator(), Steps()).fit(Plain(), data)
    assert steps == [4, 4, 1, 1]


# ------------------------------------------------------------------ checkpoints


def test_last_is_found_again_by_the_two_checkpoints_and_missing_ones_are_said(tmp_path):
    def run(rounds, ckpt_path=None):
        flags = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
        checkpoints = BestCheckpoint("val_acc"), LastCheckpoint()
        return federate(Plain(), rounds, *checkpoints, Rounds(), flags=flags, ckpt_path=ckpt_path)

    with pytest.raises(CheckpointError, match=r"'ckpt_path' is 'last', but .* has no checkpoint to resume from"):
        run(2, "last")
    run(2)
    resumed = run(3, "last")
    assert next(c for c in resumed.callbacks if isinstance(c, Rounds)).count == 1
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path):
    """Server momentum, AdaFed, dropout of the global generator in validation's neighbourhood: bit for bit."""
    settings = {
        "strategy": AdaFed("val_acc"),
        "server_optimizer": lambda p: torch.optim.SGD(p, lr=0.8, momentum=0.5),
        "clients_per_round": 2,
    }
    L.seed_everything(4, verbose=False)
    module = Plain(batchnorm=True, momentum=0.9)
    whole, first, second = (copy.deepcopy(module) for _ in range(3))
    federate(whole, 4, **settings)
    checkpoint = every_round(tmp_path)
    federate(first, 2, checkpoint, flags={"enable_checkpointing": True}, **settings)
    torch.rand(1000)  # another process would be elsewhere in its random numbers
    run = federate(second, 4, ckpt_path=str(tmp_path / "last.ckpt"), **settings)
    assert run.global_step == 4
    assert same_bits(weights(whole), weights(second))
    assert not same_bits(weights(first), weights(second))


def test_best_and_last_checkpoint(tmp_path):
    best = ModelCheckpoint(tmp_path, filename="best-{epoch}", monitor="val_acc", mode="max")
    run = federate(Plain(), 4, best, every_round(tmp_path), flags={"enable_checkpointing": True})
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (3, 4)
    assert best.best_model_score == pytest.approx(max(run.callback_metrics["val_acc"], best.best_model_score))
    assert torch.load(best.best_model_path, weights_only=True)["global_step"] >= 1


def test_a_checkpoint_is_the_users_own(tmp_path):
    """It holds nothing of this package but plain values: the class's own load_from_checkpoint reads it."""
    module = Plain(lr=0.3)
    federate(module, 2, every_round(tmp_path), flags={"enable_checkpointing": True})
    loaded = Plain.load_from_checkpoint(tmp_path / "last.ckpt")
    assert loaded.hparams.lr == 0.3
    assert same_bits(weights(loaded), weights(module))
    raw = torch.load(tmp_path / "last.ckpt", weights_only=True)  # refuses any class that is not plain
    assert raw["callbacks"]["FederatedOrchestrator"]["settings"]["federation"]["seed"] == 0


def test_a_classification_task_is_loaded_with_its_class_weights(tmp_path):
    def make():
        return {"network": Plain().net, "num_classes": 3, "loss": F1WeightedCrossEntropy(3)}

    task = ClassificationTask(**make())
    federate(task, 2, every_round(tmp_path), flags={"enable_checkpointing": True})
    loaded = ClassificationTask.load_from_checkpoint(tmp_path / "last.ckpt", **make())
    assert same_bits(weights(loaded), weights(task))
    assert loaded.loss.class_weights.tolist() != [1.0, 1.0, 1.0]


def test_validate_and_test_read_a_federations_checkpoint(tmp_path):
    run = federate(Plain(), 2, every_round(tmp_path), flags={"enable_checkpointing": True})
    expected = float(run.callback_metrics["val_acc"])
    other = trainer(1, FederatedOrchestrator(FedAvg("uniform"), seed=9))  # what a run must share to resume is not asked for
    data = FederatedDataModule(Blobs(), IIDPartitioner(3))
    for verb in (other.validate, other.test):
        (result,) = verb(Plain(), data, ckpt_path=str(tmp_path / "last.ckpt"), verbose=False)
        assert result["val_acc"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "written with 'federation.seed' 0, but this run has 1"),
        ({"strategy": AdaFed("val_acc")}, "written with 'federation.strategy' 'FedAvg', but this run has 'AdaFed'"),
        ({"clients_per_round": 2}, "written with 'federation.clients_per_round' 1.0, but this run has 2"),
    ],
)
def test_resuming_another_federation_is_refused(changed, message, tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    with pytest.raises(CheckpointError, match=message):
        federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), **changed)


def test_resuming_with_other_clients_is_refused(tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    with pytest.raises(CheckpointError, match="The checkpoint has 3 clients, but this run has 4"):
        federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), partitioner=IIDPartitioner(4))
    with pytest.raises(CheckpointError, match=r"clients have different training examples .* Resume with the same data"):
        federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), partitioner=IIDPartitioner(3))


def test_resuming_with_other_threads_warns(tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    with pytest.warns(UserWarning, match="written with 1 threads per client, but this run has 2"):
        federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), local=LocalTraining(max_epochs=2, threads=2))
    assert torch.get_num_threads() == 1  # put back


def test_a_checkpoint_in_another_format_is_refused(tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    path = tmp_path / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"]["FederatedOrchestrator"]["format"] = 99
    torch.save(checkpoint, path)
    with pytest.raises(CheckpointError, match="has format 99, but this version of fl_lightning reads format 5"):
        federate(Plain(), 2, ckpt_path=str(path))


def test_a_corrupt_checkpoint_is_named_with_the_others(tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes((tmp_path / "last.ckpt").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"broken.ckpt' is not a readable checkpoint .* such as last.ckpt"):
        federate(Plain(), 2, ckpt_path=str(broken))


def test_a_second_fit_goes_on_once_max_epochs_is_raised():
    whole, split = Plain(), None
    split = copy.deepcopy(whole)
    federate(whole, 4)
    federation = FederatedOrchestrator(local=LocalTraining(max_epochs=2))
    run = trainer(2, federation)
    from federations import Consecutive

    data = FederatedDataModule(Blobs(), Consecutive())
    run.fit(split, data)
    run.fit_loop.max_epochs = 4
    run.fit(split, data)
    assert run.global_step == 4
    assert same_bits(weights(whole), weights(split))


@pytest.mark.parametrize("strategy", [FedAvg, Scaffold])
def test_a_clients_model_is_freed_before_the_next_client_trains(strategy):
    models, alive = [], []

    class Remembering(strategy):
        """Remembers the models that clients send, without holding them."""

        def accumulate(self, update, sums):
            models.append(weakref.ref(update.snapshot.vector))
            return super().accumulate(update, sums)

    class Looking(Plain):
        def training_step(self, batch, batch_idx):
            alive.append(sum(model() is not None for model in models))
            return super().training_step(batch, batch_idx)

    federate(Looking(momentum=0.0), 2, strategy=Remembering(), local=LocalTraining(engine="fabric"))
    assert len(models) >= 4
    assert set(alive) == {0}
