"""What users' modules do works in rounds: their hooks, networks, buffers and loggers; and what does not fit."""

import functools
import logging
import warnings

import lightning as L
import pytest
import torch
from engine_runs import Collect, variant
from federations import Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from lightning.pytorch.loggers import CSVLogger
from listed import Listed
from torch.utils.data import DataLoader

from fl_lightning import (
    AdaFed,
    ClientError,
    ClientEvaluation,
    ConfigurationError,
    DataError,
    Faults,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    IIDPartitioner,
    LocalTraining,
)


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


def test_a_network_built_in_setup():
    """Anew each time, as some do: the clients must still get the server's weights."""

    def build(self, stage):
        self.net = Plain().net

    L.seed_everything(0, verbose=False)
    module, collect = variant(setup=build)(), Collect()
    del module.net
    run = federate(module, 3, collect, strategy=AdaFed("val_acc"))
    assert min(update.score for update in collect.updates[-3:]) > 0.5  # the trained networks were scored, not new ones
    assert float(run.callback_metrics["val_acc"]) > 0.5


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


# ------------------------------------------------------------------ what does not fit


def test_the_module_is_released_after_an_error():
    module = Plain()
    with pytest.raises(ConfigurationError, match="clients_per_round"):
        federate(module, clients_per_round=9)
    assert module.automatic_optimization
    assert "training_step" not in vars(module)


@pytest.mark.parametrize("settings", [{}, {"faults": Faults("skip"), "client_evaluation": ClientEvaluation(1, "val_acc")}])
def test_a_training_set_that_shrinks_in_a_run(settings):
    base = Blobs()
    dataset = Listed(*base.train)
    base.train_dataloader = lambda: DataLoader(dataset, batch_size=5)

    class Shrinks(FederationCallback):
        def on_round_start(self, trainer, pl_module, round_idx, cohort):
            if round_idx == 1:
                dataset.targets = dataset.targets[:20]

    message = "The training set has 20 examples now, but had 40 when they were divided among the clients. Let Listed"
    run = trainer(3, FederatedOrchestrator(**settings), Shrinks())
    with pytest.raises((DataError, ClientError), match=message):
        run.fit(Plain(), FederatedDataModule(base, IIDPartitioner(4), client_test=0.2))


def test_all_scores_zero_fall_back_to_the_plain_average():
    results = []
    for strategy in (AdaFed("score", mode="max"), FedAvg("uniform")):
        L.seed_everything(1, verbose=False)
        module = variant(on_validation_epoch_end=lambda self: self.log("score", 0.0))()
        federate(module, strategy=strategy)
        results.append(weights(module.net))
    assert same_bits(*results)


def test_a_parallel_strategy_that_shards_the_model():
    federation, data = FederatedOrchestrator(), FederatedDataModule(Blobs(), Consecutive())
    run = trainer(1, federation)
    run.strategy.__class__ = type("FSDPStrategy", (L.pytorch.strategies.Strategy,), dict(vars(type(run.strategy))))
    run.datamodule = data
    data.setup("fit")
    with pytest.raises(ConfigurationError, match=r"'trainer.strategy' is FSDPStrategy. Set it to 'auto' or 'ddp'"):
        federation.setup(run, Plain(), "fit")
