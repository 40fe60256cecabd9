"""A resumed run has the settings of its checkpoint, or says what differs before a round is trained."""

from __future__ import annotations

import functools
import inspect
import math
import random
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from command_line import small
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, weights
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import fl_lightning
from fl_lightning import (
    ALIE,
    AdaFed,
    Attackers,
    Availability,
    CheckpointError,
    ClassificationTask,
    ClipUpdate,
    F1WeightedCrossEntropy,
    Faults,
    FedAvg,
    FedAvgM,
    FederatedDataModule,
    FederatedOrchestrator,
    FedLoss,
    FedStar,
    Focus,
    LabelAveraging,
    LeNet,
    LocalOnly,
    LocalTraining,
    MNISTDataModule,
    RandomLabels,
    SecureAggregation,
    ServerEvaluation,
    ShapleyValues,
    SignFlip,
    TopK,
    Yogi,
)
from fl_lightning.callbacks.resume_table import kind_of
from fl_lightning.functional.description import Describer, constructor_arguments

SAVED = {"enable_checkpointing": True}


class Stepped(Plain):
    """With a schedule inside of a round, and dropout."""

    def __init__(self, lr: float = 0.1, gamma: float = 0.5, p: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.save_hyperparameters()
        self.gamma = gamma
        self.net = nn.Sequential(*self.net, nn.Dropout(p))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=self.gamma)]


class OwnStrategy(FedAvg):
    """A user's own, with an argument that nobody else knows."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound


class Lazy(Dataset):
    """A map-style dataset that reads examples one by one."""

    def __init__(self, scale: float = 1.0, noise: bool = False) -> None:
        self._scale, self._noise = scale, np.random.default_rng() if noise else None

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = torch.full((4,), index / 300 * self._scale) + 0.01 * torch.rand(4)
        if self._noise is not None:
            x = x + float(self._noise.normal())
        return x, index % 3


class LazyData(Blobs):
    def __init__(self, noise: bool = False, **more: Any) -> None:
        super().__init__()
        self.train_set = Lazy(noise=noise, **more)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train_set, batch_size=50, shuffle=True)


def other_inputs() -> Blobs:
    data = Blobs()
    data.train = data.train[0] + 0.01, data.train[1]
    return data


def other_validation() -> Blobs:
    data = Blobs()
    data.val = data.val[0] * 1.01, data.val[1]
    return data


def local(**more: Any) -> dict[str, Any]:
    return {"local": LocalTraining(**{"max_epochs": 2, **more})}


def sgd(**settings: Any) -> dict[str, Any]:
    return {"server_optimizer": lambda parameters: torch.optim.SGD(parameters, **settings)}


def attacked(**more: Any) -> dict[str, Any]:
    return {"attackers": Attackers(clients=[1], **more)}


Run = dict[str, Any]
ON_PURPOSE: dict[str, tuple[Run, Run, str]] = {
    "client rate": ({}, {"module": Plain(lr=0.2)}, "'model.optimizer.lr' 0.1, but this run has 0.2"),
    "client optimizer": (
        {"module": ClassificationTask(Plain().net, 3, optimizer=functools.partial(torch.optim.SGD, lr=0.1))},
        {"module": ClassificationTask(Plain().net, 3, optimizer=functools.partial(torch.optim.Adam, lr=0.1))},
        "'model.optimizer' 'SGD', but this run has 'Adam'",
    ),
    "schedule": (
        {"module": Stepped()},
        {"module": Stepped(gamma=0.9)},
        "'model.lr_scheduler.gamma' 0.5, but this run has 0.9",
    ),
    "dropout": ({"module": Stepped()}, {"module": Stepped(p=0.4)}, "'model.net.4.p' 0.1, but this run has 0.4"),
    "epochs": ({}, local(max_epochs=1), "'federation.local.max_epochs' 2, but this run has 1"),
    "mu": ({}, local(proximal_mu=0.1), "'federation.local.proximal_mu' 0, but this run has 0.1"),
    "local clipping": ({}, local(gradient_clip_val=1), "'federation.local.gradient_clip_val' None, but this run has 1"),
    "a batch instead of all": (
        {},
        local(limit_train_batches=1),
        "'federation.local.limit_train_batches' 1.0, but this run has 1",
    ),
    "precision": ({}, local(precision="bf16-mixed"), "'federation.local.precision' '32-true', but this run has 'bf16-mixed'"),
    "engine": ({}, local(engine="stacked"), "'federation.local.engine' 'trainer or fabric', but this run has 'stacked'"),
    "batch size": ({}, {"data": Blobs(batch_size=10)}, "'data.datamodule.batch_size' 5, but this run has 10"),
    "shuffling": ({}, {"data": Blobs(shuffle=False)}, "'data.datamodule.shuffle' True, but this run has False"),
    "other data": ({}, {"data": other_inputs()}, "'data.training_examples' '40 examples"),
    "other validation data": ({}, {"data": other_validation()}, "'data.validation_examples' '61 examples"),
    "other lazy data": ({"data": LazyData()}, {"data": LazyData(scale=1.1)}, "'data.training_examples' '300 examples"),
    "weighting": (
        {},
        {"strategy": FedAvg("uniform")},
        "'federation.strategy.weighting' 'examples', but this run has 'uniform'",
    ),
    "power": (
        {"strategy": AdaFed("val_acc")},
        {"strategy": AdaFed("val_acc", power=2)},
        "'federation.strategy.power' 1, but this run has 2",
    ),
    "metric": (
        {"strategy": AdaFed("val_acc")},
        {"strategy": AdaFed("val_loss", mode="max")},
        "'federation.strategy.metric' 'val_acc', but this run has 'val_loss'",
    ),
    "a metric's own setting": (
        {"strategy": AdaFed(MulticlassF1Score(3))},
        {"strategy": AdaFed(MulticlassF1Score(3, average="micro"))},
        "'federation.strategy.metric.average' 'macro', but this run has 'micro'",
    ),
    "another metric": (
        {"strategy": AdaFed(MulticlassF1Score(3))},
        {"strategy": AdaFed(MulticlassAccuracy(3))},
        "'federation.strategy.metric' 'MulticlassF1Score', but this run has 'MulticlassAccuracy'",
    ),
    "Shapley's metric": (
        {"strategy": ShapleyValues("val_acc", mode="max")},
        {"strategy": ShapleyValues("val_loss", mode="max")},
        "'federation.strategy.metric' 'val_acc', but this run has 'val_loss'",
    ),
    "own strategy": (
        {"strategy": OwnStrategy(1.0)},
        {"strategy": OwnStrategy(2.0)},
        "'federation.strategy.bound' 1, but this run has 2",
    ),
    "route": (
        {"route": FedStar(1, "val_acc")},
        {"route": FedStar(2, "val_acc")},
        "'federation.route.periods' 1, but this run has 2",
    ),
    "attackers": ({}, attacked(model=SignFlip()), "'federation.attackers.clients' [], but this run has [1]"),
    "an attack's strength": (
        attacked(model=SignFlip(1.0)),
        attacked(model=SignFlip(2.0)),
        "'federation.attackers.model.scale' 1, but this run has 2",
    ),
    "another attack": (
        attacked(labels=RandomLabels(0.5)),
        attacked(model=ALIE()),
        "'federation.attackers.labels' 'RandomLabels', but this run has None",
    ),
    "clipping of updates": (
        {"transforms": [ClipUpdate(1.0)]},
        {"transforms": [ClipUpdate(0.5)]},
        "'federation.transforms.0.max_norm' 1, but this run has 0.5",
    ),
    "availability": ({}, {"availability": Availability(0.1)}, "'federation.availability.drop_out' 0, but this run has 0.1"),
    "server's evaluation": (
        {},
        {"server_evaluation": ServerEvaluation(examples=0.5)},
        "'federation.server_evaluation.examples' 1.0, but this run has 0.5",
    ),
    "secrecy": (
        {},
        {"secure_aggregation": SecureAggregation()},
        "'federation.secure_aggregation' None, but this run has 'SecureAggregation'",
    ),
    "validation batches": ({}, {"flags": {"limit_val_batches": 2}}, "'trainer.limit_val_batches' 1.0, but this run has 2"),
    "server rate": (sgd(lr=1.0), sgd(lr=0.5), "'federation.server_optimizer.lr' 1, but this run has 0.5"),
    "server momentum": (
        {"strategy": FedAvgM(0.5)},
        {"strategy": FedAvgM(0.7)},
        "'federation.strategy.momentum' 0.5, but this run has 0.7",
    ),
    "another server optimizer": (
        sgd(lr=0.5),
        {"server_optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05)},
        "'federation.server_optimizer' 'SGD', but this run has 'Adam'",
    ),
    "noise at the clients": ({}, {"parts": {"feature_noise": 0.1}}, "'data.feature_noise' 0, but this run has 0.1"),
    "repeats": ({}, {"parts": {"rebalancing": LabelAveraging()}}, "'data.rebalancing' None, but this run has 'LabelAveraging'"),
}
STAYS: dict[str, tuple[Run, Run, str]] = {
    "seed": ({}, {"seed": 1}, "'federation.seed' 0, but this run has 1"),
    "strategy": ({}, {"strategy": AdaFed("val_acc")}, "'federation.strategy' 'FedAvg', but this run has 'AdaFed'"),
    "route": ({}, {"route": FedStar(2, "val_acc")}, "'federation.route' 'ServerRoute', but this run has 'FedStar'"),
    "cohort": ({}, {"clients_per_round": 2}, "'federation.clients_per_round' 1.0, but this run has 2"),
    "one client or all": ({}, {"clients_per_round": 1}, "'federation.clients_per_round' 1.0, but this run has 1"),
    "transforms": ({}, {"transforms": [TopK(0.5)]}, r"'federation.transforms' [], but this run has ['TopK']"),
    "architecture": (
        {},
        {"module": Plain(batchnorm=True)},
        "'net.2.weight' has shape (3, 8), but this run's (8,): the model is another one",
    ),
    "sizes": ({}, {"partitioner": Consecutive((10, 10, 20))}, "The checkpoint's clients held other training examples"),
}
FREE: dict[str, tuple[Run, Run]] = {
    "engine with the same bits": ({}, local(engine="fabric")),
    "faults": ({}, {"faults": Faults("skip", retries=1)}),
    "memory": ({}, {"updates_in_memory": 0.5}),
    "logger": ({}, {"flags": {"logger": True}}),
    "the same optimizer by other code": (
        {"module": ClassificationTask(Plain().net, 3, optimizer=functools.partial(torch.optim.SGD, lr=0.1))},
        {"module": ClassificationTask(Plain().net, 3, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))},
    ),
    "the strategy's optimizer by hand": (
        {"strategy": FedAvg()},
        sgd(lr=1.0),
    ),
    "where data lie": ({"data": LazyData()}, {"data": LazyData()}),
    "a random transform of its own": ({"data": LazyData(noise=True)}, {"data": LazyData(noise=True)}),
}


def run(folder: Path, rounds: int, settings: Run, **more: Any) -> L.LightningModule:
    """Fit the settings for some rounds; a module that they name is taken as if it were new."""
    import copy

    settings = copy.deepcopy({k: v for k, v in settings.items() if k != "server_optimizer"}) | {
        k: v for k, v in settings.items() if k == "server_optimizer"
    }
    torch.manual_seed(3)
    module = settings.pop("module", None) or Plain()
    flags = {**SAVED, "default_root_dir": str(folder), **settings.pop("flags", {})}
    parts, partitioner = settings.pop("parts", {}), settings.pop("partitioner", None) or Consecutive()
    data = FederatedDataModule(settings.pop("data", None) or Blobs(), partitioner, **parts)
    path = more.pop("ckpt_path", None)
    settings = {"local": LocalTraining(max_epochs=2), **settings, **more}
    trainer = L.Trainer(
        max_epochs=rounds,
        callbacks=[FederatedOrchestrator(**settings), every_round(folder)],
        **{"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False, **flags},
    )
    trainer.fit(module, data, ckpt_path=path)
    return module


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_a_changed_setting_is_refused_unless_on_purpose(name, tmp_path):
    before, now, message = ON_PURPOSE[name]
    run(tmp_path, 1, before)
    path = str(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError) as refused:
        run(tmp_path, 2, {**before, **now}, ckpt_path=path)
    assert message in str(refused.value)
    assert "set 'federation.resume_changed' to true" in str(refused.value)
    with pytest.warns(UserWarning, match="Resumed with changed settings") as warned:
        run(tmp_path, 2, {**before, **now}, ckpt_path=path, resume_changed=True)
    assert any(message in str(warning.message) for warning in warned)
    assert torch.load(path, weights_only=True)["epoch"] == 1


@pytest.mark.parametrize("name", STAYS)
def test_what_must_stay_is_refused_in_any_case(name, tmp_path):
    before, now, message = STAYS[name]
    run(tmp_path, 1, before)
    for allowed in (False, True):
        with pytest.raises(CheckpointError) as refused:
            run(tmp_path, 2, {**before, **now}, ckpt_path=str(tmp_path / "last.ckpt"), resume_changed=allowed)
        assert message in str(refused.value)
        assert ("'federation.resume_changed' does not allow to change" in str(refused.value)) == allowed


@pytest.mark.parametrize("name", FREE)
def test_what_changes_no_result_is_free(name, tmp_path, recwarn):
    before, now = FREE[name]
    run(tmp_path, 1, before)
    run(tmp_path, 2, {**before, **now}, ckpt_path=str(tmp_path / "last.ckpt"))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 1
    assert not any("Resumed with changed" in str(warning.message) for warning in recwarn)
