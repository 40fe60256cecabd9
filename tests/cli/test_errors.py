"""What a user of the classes meets when something does not fit: wanted, came, remedy. The command line is in test_cli."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from federations import Blobs, Consecutive, NoValidation, Plain, federate, trainer, weights
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning import (
    AdaFed,
    ClassificationTask,
    ClientError,
    ClientEvaluation,
    ConfigurationError,
    CrossEntropy,
    DataError,
    DirichletPartitioner,
    F1WeightedCrossEntropy,
    Faults,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    IIDPartitioner,
    LabelAveraging,
    LocalTraining,
    PartitionReport,
    WeightedAverage,
)


def test_a_datamodule_that_is_not_federated():
    with pytest.raises(ConfigurationError, match=r"'fit' got Blobs\. Wrap your datamodule: .*FederatedDataModule\("):
        trainer(1, FederatedOrchestrator()).fit(Plain(), Blobs())


def test_dataloaders_instead_of_a_datamodule():
    with pytest.raises(ConfigurationError, match="'fit' got no datamodule"):
        trainer(1, FederatedOrchestrator()).fit(Plain(), Blobs().train_dataloader())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients_per_round": 2.0}, "whole number of clients, but is 2.0. Write 2 for a number, or 0.02 for 2 %."),
        ({"clients_per_round": 50.5}, "whole number of clients, but is 50.5. Write 0.505 for 50.5 %."),
        ({"clients_per_round": -0.5}, "whole number of clients, but is -0.5."),
    ],
)
def test_percent_and_numbers_of_clients(settings, said):
    with pytest.raises(ConfigurationError) as caught:
        federate(Plain(), **settings)
    assert str(caught.value).endswith(said)


def test_percent_of_a_clients_examples():
    with pytest.raises(
        ConfigurationError, match=r"'data.client_test' must be at least 0 and below 1, but is 20\. Write 0\.2 for 20 %"
    ):
        FederatedDataModule(Blobs(), Consecutive(), client_test=20)


def test_a_metric_needs_a_validation_step():
    needs = (
        r"'federation\.strategy\.metric' needs val_acc, but WithoutValidation has no 'validation_step' to log it in\. Define"
    )

    class WithoutValidation(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(ConfigurationError, match=needs):
        federate(WithoutValidation(), strategy=AdaFed("val_acc"))


def test_a_validation_set_without_batches():
    class Empty(Blobs):
        def val_dataloader(self) -> Any:
            return []

    needs = (
        r"'federation\.strategy\.metric' needs 'val_acc' of models, but the set to evaluate them on has no batches\. Let 'val"
    )
    with pytest.raises(ConfigurationError, match=needs):
        federate(Plain(), strategy=AdaFed("val_acc"), data=Empty())


def test_the_module_is_released_after_an_error():
    module = Plain()
    with pytest.raises(ConfigurationError, match="clients_per_round"):
        federate(module, clients_per_round=9)
    assert module.automatic_optimization
    assert "training_step" not in vars(module)


class LossOf(Plain):
    """Its loss becomes what it is told, for the client with 20 examples only."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.examples = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if self.trainer.num_training_batches == 4 else loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_client_and_round(value):
    module = LossOf(value)
    before = weights(module.net)
    message = r"Client 1 \(of 20 examples\) in round 0: the training loss is (nan|inf).*Lower its learning rate"
    with pytest.raises(ClientError, match=message):
        federate(module)
    assert all(torch.equal(before[name], value) for name, value in weights(module.net).items())  # nothing was aggregated


def test_weights_that_are_not_finite():
    class Breaks(Plain):
        def on_train_end(self) -> None:
            self.net[0].weight.data.fill_(float("inf"))

    with pytest.raises(ClientError, match="in round 0: the weights that it sent are not finite"):
        federate(Breaks())


def test_a_strategy_that_needs_a_validation_set():
    message = "needs val_acc on the server's validation set, but the server has none.*such as FedAvg"
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), data=NoValidation(), strategy=AdaFed("val_acc"))


def test_fedavg_needs_no_validation_set():
    assert federate(Plain(), 2, data=NoValidation()).global_step == 2


def test_an_adaptive_loss_without_a_validation_set():
    task = ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3))
    with pytest.raises(
        ConfigurationError, match=r"adapts to the MulticlassF1Score on the server's validation set, but there is no"
    ):
        federate(task, data=NoValidation())


def test_a_metric_that_the_module_does_not_log_lists_what_it_does():
    with pytest.raises(ConfigurationError, match=r"'val_accuracy', which Plain does not log.*It logs: val_acc, val_loss"):
        federate(Plain(), strategy=AdaFed())


class Labelled(Blobs):
    """One label is not the number of a class."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.train[1][5] = label


LARGE = r"Example 5 has the label 1000000000000, but classes are numbered from 0 to below 1,000,000\. Correct the label"
SMALL = r"Example 5 has the label -1, but classes are numbered from 0\. Assign it a class"


@pytest.mark.parametrize(
    ("label", "message", "settings"),
    [
        (10**12, LARGE, {"partitioner": DirichletPartitioner(3)}),
        (10**12, LARGE, {"partitioner": IIDPartitioner(3), "public_share": 0.1}),
        (10**12, LARGE, {"partitioner": IIDPartitioner(3), "rebalancing": LabelAveraging()}),
        (-1, SMALL, {"partitioner": IIDPartitioner(3), "rebalancing": LabelAveraging()}),
    ],
)
def test_a_label_that_is_no_class(label, message, settings):
    run = trainer(1, FederatedOrchestrator())
    with pytest.raises(DataError, match=message):
        run.fit(Plain(), FederatedDataModule(Labelled(label), **settings))


def test_an_optimizer_that_rejects_its_settings():
    task = ClassificationTask(Plain().net, 3, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=-0.5))
    with pytest.raises(ConfigurationError, match=r"'model.optimizer' rejects its settings: Invalid learning rate: -0.5"):
        federate(task, 1)


@pytest.mark.parametrize("label", [10**12, -1])
def test_a_label_that_is_no_class_of_the_task(label):
    """Whoever needs no classes divides such data; a task that has classes refuses them before it trains."""
    task = ClassificationTask(Plain().net, 3)
    data = FederatedDataModule(Labelled(label), IIDPartitioner(3), client_test=0.2)
    with pytest.raises(DataError, match=rf"The labels go from .*{label}.* but the model has classes 0 to 2"):
        trainer(1, FederatedOrchestrator(), PartitionReport()).fit(task, data)


class Shrinks(FederationCallback):
    """Before round 1 the training set has half its examples."""

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        if round_idx == 1:
            dataset = trainer.datamodule.client_datasets.source.dataset
            dataset.size //= 2


class Sized(Dataset):
    def __init__(self, examples) -> None:
        self.examples, self.size = examples, len(examples[0])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        if index >= self.size:
            raise IndexError(index)
        return self.examples[0][index], self.examples[1][index]


class Shrinking(Blobs):
    def __init__(self) -> None:
        super().__init__()
        self.dataset = Sized(self.train)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=5)


@pytest.mark.parametrize("settings", [{}, {"client_evaluation": ClientEvaluation(1, "val_acc")}])
@pytest.mark.parametrize("faults", [Faults(), Faults("skip")])
def test_a_training_set_that_shrinks_in_a_run(faults, settings):
    run = trainer(3, FederatedOrchestrator(faults=faults, **settings), Shrinks())
    message = (
        r"The training set has 20 examples now, but had 40 when they were divided among the clients\. Make sure that Sized"
    )
    with pytest.raises((DataError, ClientError), match=message):
        run.fit(Plain(), FederatedDataModule(Shrinking(), IIDPartitioner(4), client_test=0.2))


def test_a_metric_whose_scores_are_negative():
    class Negative(Plain):
        def on_validation_epoch_end(self) -> None:
            self.log("score", -0.5)

    with pytest.raises(ClientError, match=r"AdaFed gave client 1 the weight -0.5 in round 0, but weights must be finite"):
        federate(Negative(), strategy=AdaFed("score", mode="max"))


def test_all_scores_zero_fall_back_to_the_plain_average():
    class Zero(Plain):
        def on_validation_epoch_end(self) -> None:
            self.log("score", 0.0)

    results = []
    for strategy in (AdaFed("score", mode="max"), None):
        L.seed_everything(1, verbose=False)
        module = Zero()
        federate(module, strategy=strategy or Uniform())
        results.append(weights(module.net))
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name])


class Uniform(WeightedAverage):
    def weight(self, update: Any) -> float:
        return 1.0


def test_a_torchmetrics_metric_needs_pairs():
    from torchmetrics.classification import MulticlassAccuracy

    class Dictionaries(Blobs):
        def val_dataloader(self) -> Any:
            return DataLoader([{"x": self.val[0], "y": self.val[1]}], batch_size=None)

    class Reads(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    with pytest.raises(ConfigurationError, match=r"needs batches of \(input, target\), but it got a dict"):
        federate(Reads(), data=Dictionaries(), strategy=AdaFed(MulticlassAccuracy(3)))


def test_labels_outside_the_classes_when_no_partitioner_read_them():
    class Wrong(Blobs):
        def __init__(self) -> None:
            super().__init__()
            self.train = (self.train[0], self.train[1] + 1)

    task = ClassificationTask(Plain().net, 3, CrossEntropy())
    with pytest.raises(DataError, match=r"labels go from \d to 3, but the model has classes 0 to 2. Set 'model.num_classes'"):
        federate(task, data=Wrong())


def test_a_module_that_cannot_be_copied():
    module = Plain()
    module.stream = (i for i in range(3))
    with pytest.warns(UserWarning, match=r"'stream' of Plain cannot be copied for the clients .*Create it in 'on_train_start'"):
        assert federate(module).global_step == 3


def test_a_training_step_replaced_on_the_instance():
    module = Plain()
    original = module.training_step
    module.training_step = lambda batch, batch_idx: original(batch, batch_idx)
    with pytest.raises(ConfigurationError, match="'training_step' of Plain was replaced on the instance"):
        federate(module)


def test_an_error_of_the_users_own_keeps_its_type():
    class Broken(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        federate(Broken())


def test_an_integer_limit_is_refused_as_well():
    with pytest.raises(
        ConfigurationError,
        match=r"'trainer.limit_train_batches' is 1, but .* set 'federation.local.limit_train_batches' instead",
    ):
        federate(Plain(), flags={"limit_train_batches": 1})


def test_a_parallel_strategy_that_shards_the_model():
    federation = FederatedOrchestrator()
    run = L.Trainer(accelerator="cpu", callbacks=[federation], logger=False, enable_progress_bar=False)
    run.strategy.__class__ = type("FSDPStrategy", (L.pytorch.strategies.Strategy,), dict(vars(type(run.strategy))))
    with pytest.raises(ConfigurationError, match=r"'trainer.strategy' is FSDPStrategy. Set it to 'auto' or 'ddp'"):
        federation.setup(_WithData(run), Plain(), "fit")


class _WithData:
    """A Trainer whose datamodule is there before a fit."""

    def __init__(self, run: L.Trainer) -> None:
        self._run = run
        self.datamodule = FederatedDataModule(Blobs(), Consecutive())
        self.datamodule.setup("fit")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


def data_with(loader: Any) -> L.LightningDataModule:
    class Given(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader

    return Given()


TENSORS = TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (L.LightningDataModule(), "has no 'train_dataloader', so there is nothing to divide among clients"),
        (data_with([1, 2]), r"train_dataloader\(\) returns a list, but a federation needs one torch DataLoader"),
        (data_with(DataLoader(Stream())), "trains on an iterable dataset"),
    ],
)
def test_training_data_that_cannot_be_divided(data, message):
    with pytest.raises(DataError, match=message):
        FederatedDataModule(data, IIDPartitioner(2)).setup("fit")


def test_an_evaluation_set_smaller_than_the_ranks():
    from fl_lightning.data.loaders import sharded

    with pytest.raises(DataError, match="evaluation set of 6 examples cannot be split over 7 ranks"):
        sharded(DataLoader(TENSORS), 0, 7)


@pytest.mark.parametrize("setting", ["devices", "logger", "max_epoch"])
def test_local_training_takes_no_other_flag(setting):
    with pytest.raises(TypeError, match=setting):
        LocalTraining(**{setting: 1})
