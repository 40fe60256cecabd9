"""What users' modules do works in rounds: their hooks, callbacks, networks, buffers and loggers."""

from __future__ import annotations

import functools
import logging
import warnings

import lightning as L
import pytest
import torch
from engine_runs import Collect, variant
from federations import Blobs, Plain, federate, weights
from lightning.pytorch.loggers import CSVLogger

from fl_lightning import AdaFed, IIDPartitioner, LocalTraining


def test_the_modules_own_training_hooks_belong_to_the_clients():
    calls = []
    hooks = {
        "on_train_epoch_end": lambda self: calls.append(self.trainer.max_epochs),
        "on_before_optimizer_step": lambda self, optimizer: calls.append("step"),
        "on_after_batch_transfer": lambda self, batch, dataloader_idx: (batch[0] * 1, batch[1]),
    }
    federate(variant(**hooks)(), 1, local=LocalTraining(max_epochs=3))
    assert set(calls) == {3, "step"}  # never the outer Trainer's 1
    assert calls.count(3) == 9


def test_a_module_reads_attributes_of_its_own_datamodule():
    class Reads(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * self.trainer.datamodule.scale

        def on_validation_start(self):
            assert self.trainer.datamodule.scale == 0.5

    data = Blobs()
    data.scale = 0.5
    assert federate(Reads(), 1, data=data, strategy=AdaFed("val_acc")).global_step == 1


def test_networks_built_in_setup_or_configure_model():
    """Anew each time in 'setup', as some do: the clients must still get the server's weights."""

    def build(self, stage=None):
        if stage is not None or not hasattr(self, "net"):
            self.net = Plain().net

    results = []
    for hook in ("setup", "configure_model"):
        L.seed_everything(0, verbose=False)
        module, collect = variant(**{hook: build})(), Collect()
        del module.net
        run = federate(module, 3, collect, strategy=AdaFed("val_acc"))
        assert min(update.score for update in collect.updates[-3:]) > 0.5  # the trained networks were scored, not new ones
        results.append(float(run.callback_metrics["val_acc"]))
    assert results[0] == results[1] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_inner_trainers_say_nothing_but_the_users_module_is_heard(package, capfd, caplog, monkeypatch):
    """The package ``pytorch_lightning``, imported by others, gives Lightning its own logger."""
    monkeypatch.setattr("lightning_utilities.core.rank_zero.log", logging.getLogger(f"{package}.utilities.rank_zero"))
    with caplog.at_level(logging.INFO):
        federate(Plain(), 1)
        one = len(caplog.records)
        caplog.clear()
        warns = variant(on_train_start=lambda self: warnings.warn("mine, about the data", stacklevel=1))
        with pytest.warns(UserWarning, match="mine, about the data"):
            federate(warns(), 1, data=Blobs(n=60), partitioner=IIDPartitioner(20))
    assert len(caplog.records) == one  # the outer Trainer's own announcements
    assert "".join(capfd.readouterr()).count("Trainer.fit") <= 2


@pytest.mark.slow
def test_a_compiled_module_trains_its_clients():
    module = Plain()
    before = weights(module)
    assert federate(torch.compile(module, backend="eager"), 1).global_step == 1
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

        def _loss(self, batch, batch_idx, factor):
            return factor * torch.nn.functional.cross_entropy(self.predict(batch[0]), batch[1])

        def training_step(self, batch, batch_idx):
            return self.loss_fn(batch, batch_idx)

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
            self.logger.experiment.log_metrics({"other": 1.0}, 0)
            super().validation_step(batch, batch_idx)

    logger = CSVLogger(tmp_path, name="", version="")
    assert federate(Logs(), 1, flags={"logger": logger}, strategy=AdaFed("val_acc")).global_step == 1
