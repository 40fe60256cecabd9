"""What a user of the classes meets when something does not fit, beside the messages in the tables of refusals."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from engine_runs import variant
from federations import Blobs, Consecutive, NoValidation, Plain, federate, trainer, weights
from torch.utils.data import DataLoader, Dataset

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
)


def test_the_module_is_released_after_an_error():
    module = Plain()
    with pytest.raises(ConfigurationError, match="clients_per_round"):
        federate(module, clients_per_round=9)
    assert module.automatic_optimization
    assert "training_step" not in vars(module)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_at_one_client_is_not_aggregated(value):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = Plain.training_step(self, batch, batch_idx)
        return loss * value if self.trainer.num_training_batches == 4 else loss

    module = variant(training_step=training_step)()
    before = weights(module.net)
    with pytest.raises(ClientError, match=r"Client 1 \(of 20 examples\) in round 0: the training loss is (nan|inf)"):
        federate(module)
    assert all(torch.equal(before[name], value) for name, value in weights(module.net).items())


def test_fedavg_needs_no_validation_set():
    assert federate(Plain(), 2, data=NoValidation()).global_step == 2


class Sized(Dataset):
    def __init__(self, examples) -> None:
        self.examples, self.size = examples, len(examples[0])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        if index >= self.size:
            raise IndexError(index)
        return self.examples[0][index], self.examples[1][index]


@pytest.mark.parametrize(
    ("faults", "settings"), [(Faults(), {}), (Faults("skip"), {"client_evaluation": ClientEvaluation(1, "val_acc")})]
)
def test_a_training_set_that_shrinks_in_a_run(faults, settings):
    base = Blobs()
    dataset = Sized(base.train)
    base.train_dataloader = lambda: DataLoader(dataset, batch_size=5)

    class Shrinks(FederationCallback):
        def on_round_start(self, trainer, pl_module, round_idx, cohort):
            if round_idx == 1:
                dataset.size //= 2

    run = trainer(3, FederatedOrchestrator(faults=faults, **settings), Shrinks())
    message = "The training set has 20 examples now, but had 40 when they were divided among the clients. Let Sized"
    with pytest.raises((DataError, ClientError), match=message):
        run.fit(Plain(), FederatedDataModule(base, IIDPartitioner(4), client_test=0.2))


def test_all_scores_zero_fall_back_to_the_plain_average():
    results = []
    for strategy in (AdaFed("score", mode="max"), FedAvg("uniform")):
        L.seed_everything(1, verbose=False)
        module = variant(on_validation_epoch_end=lambda self: self.log("score", 0.0))()
        federate(module, strategy=strategy)
        results.append(weights(module.net))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_a_module_that_cannot_be_copied():
    module = Plain()
    module.stream = (i for i in range(3))
    with pytest.warns(UserWarning, match=r"'stream' of Plain cannot be copied for the clients .*Create it in 'on_train_start'"):
        assert federate(module).global_step == 3


def test_a_parallel_strategy_that_shards_the_model():
    federation, data = FederatedOrchestrator(), FederatedDataModule(Blobs(), Consecutive())
    run = trainer(1, federation)
    run.strategy.__class__ = type("FSDPStrategy", (L.pytorch.strategies.Strategy,), dict(vars(type(run.strategy))))
    run.datamodule = data
    data.setup("fit")
    with pytest.raises(ConfigurationError, match=r"'trainer.strategy' is FSDPStrategy. Set it to 'auto' or 'ddp'"):
        federation.setup(run, Plain(), "fit")
