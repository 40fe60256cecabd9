"""A resumed run has the settings of its checkpoint, or says what differs before a round is trained."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, blobs, every_round, trainer
from resumed_runs import LazyData, OwnStrategy, Run, local, run, sgd
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score

from fl_lightning import (
    ALIE,
    AdaFed,
    Asynchronous,
    Attackers,
    Availability,
    CheckpointError,
    Checkpoints,
    ClassificationTask,
    Clock,
    Faults,
    FedAvg,
    FedBuff,
    FederatedDataModule,
    FederatedOrchestrator,
    FedStar,
    LabelAveraging,
    PersonalPart,
    RandomLabels,
    SecureAggregation,
    SignFlip,
    Storage,
    TopK,
)
from fl_lightning.server import resume


def change(name: str, was: str, now: str, after: Run, before: Run | None = None) -> tuple[str, Run, Run]:
    """Return a setting that differs from the checkpoint's, as the message has it, and the settings of both runs."""
    return f"'{name}' {was}, but this run has {now}", after, before or {}


def other(name: str, moved: Callable[[Any], Any]) -> Blobs:
    data = Blobs()
    inputs, labels = getattr(data, name)
    setattr(data, name, (moved(inputs), labels))
    return data


def task(optimizer: Callable[[Any], Any], scheduler: Callable[[Any], Any] | None = None) -> Run:
    return {"module": ClassificationTask(Plain().net, 3, optimizer=optimizer, lr_scheduler=scheduler)}


def warming(lr: float) -> Run:
    return task(functools.partial(torch.optim.AdamW, lr=lr), functools.partial(LinearLR, start_factor=0.25))


def attacked(**more: Any) -> Run:
    return {"attackers": Attackers(clients=[1], **more)}


def strategy(made: Any) -> Run:
    return {"strategy": made}


SGD, ADAM = functools.partial(torch.optim.SGD, lr=0.1), functools.partial(torch.optim.Adam, lr=0.1)
F1, ACCURACY = MulticlassF1Score(3), AdaFed("val_acc")
LOCAL, STRATEGY, ATTACK = "federation.local", "federation.strategy", "federation.attackers"
HEAD = PersonalPart(names="net.2.*")
FEDBUFF = {"strategy": FedBuff(), "asynchronous": Asynchronous(3, 2)}
ON_PURPOSE = [
    # local training
    change("model.lr", "0.1", "0.2", {"module": Plain(lr=0.2)}),
    change("model.optimizer", "'SGD'", "'Adam'", task(ADAM), task(SGD)),
    change("model.optimizer.initial_lr", "0.1", "0.3", warming(0.3), warming(0.1)),
    change(f"{LOCAL}.progress", "'run'", "'round'", local(progress="round")),
    change(f"{LOCAL}.proximal_mu", "0", "0.1", local(proximal_mu=0.1)),
    change(f"{LOCAL}.limit_train_batches", "1.0", "1", local(limit_train_batches=1)),
    change(f"{LOCAL}.engine", "'trainer or fabric'", "'stacked'", local(engine="stacked")),
    # data
    change("data.datamodule.batch_size", "5", "10", {"data": Blobs(batch_size=10)}),
    change("data.rebalancing", "None", "'LabelAveraging'", {"parts": {"rebalancing": LabelAveraging()}}),
    # strategies and routes
    change(f"{STRATEGY}.metric", "'val_acc'", "'val_loss'", strategy(AdaFed("val_loss", mode="max")), strategy(ACCURACY)),
    change(
        f"{STRATEGY}.metric.average",
        "'macro'",
        "'micro'",
        strategy(AdaFed(MulticlassF1Score(3, average="micro"))),
        strategy(AdaFed(F1)),
    ),
    change(f"{STRATEGY}.bound", "1", "2", strategy(OwnStrategy(2.0)), strategy(OwnStrategy(1.0))),
    change("federation.route.periods", "1", "2", {"route": FedStar(2, "val_acc")}, {"route": FedStar(1, "val_acc")}),
    change("federation.server_optimizer.lr", "1", "0.5", sgd(lr=0.5), sgd(lr=1.0)),
    change(
        "federation.server_optimizer",
        "'SGD'",
        "'Adam'",
        {"server_optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05)},
        sgd(lr=0.5),
    ),
    # options
    change(f"{ATTACK}.clients", "[]", "[1]", attacked(model=SignFlip())),
    change(f"{ATTACK}.labels", "'RandomLabels'", "None", attacked(model=ALIE()), attacked(labels=RandomLabels(0.5))),
    change("federation.secure_aggregation", "None", "'SecureAggregation'", {"secure_aggregation": SecureAggregation()}),
    change("federation.availability.clock", "None", "'Clock'", {"availability": Availability(clock=Clock())}, FEDBUFF),
    change("trainer.limit_val_batches", "1.0", "2", {"flags": {"limit_val_batches": 2}}),
]
OTHER_DATA: list[tuple[str, Run, Run]] = [
    ("'data.training_examples' '", {"data": other("train", lambda x: x + 0.01)}, {}),
    ("'data.validation_examples' '61 examples", {"data": other("val", lambda x: x * 1.01)}, {}),
    ("'data.training_examples' '300 examples", {"data": LazyData(scale=1.1)}, {"data": LazyData()}),
]
MAY = [*ON_PURPOSE, *OTHER_DATA]
MUST = [
    change("federation.seed", "0", "1", {"seed": 1}),
    change(STRATEGY, "'FedAvg'", "'AdaFed'", strategy(ACCURACY)),
    change("federation.route", "'ServerRoute'", "'FedStar'", {"route": FedStar(2, "val_acc")}),
    change("federation.clients_per_round", "1.0", "2", {"clients_per_round": 2}),
    change("federation.clients_per_round", "1.0", "1", {"clients_per_round": 1}),
    change("federation.transforms", "[]", "['TopK']", {"transforms": [TopK(0.5)]}),
    ("'federation.asynchronous'", {"asynchronous": None, "strategy": FedAvg()}, FEDBUFF),
    ("'federation.personal", {"personal": [PersonalPart(names="net.0.*")]}, {"personal": [HEAD]}),
    ("'federation.personal", {"personal": []}, {"personal": [HEAD]}),
    ("'federation.personal", {"personal": [HEAD]}, {}),
    ("'weights.net.1.weight' 'nothing', but this run has (8,)", {"module": Plain(batchnorm=True)}, {}),
    ("'clients.number' 3, but this run has 4", {"partitioner": Consecutive((10, 10, 10, 10))}, {}),
    ("'clients.examples' '", {"partitioner": Consecutive((10, 10, 20))}, {}),
    (
        "'clients.examples' '",
        {"parts": {"held_out_clients": ["0"]}},
        {"parts": {"held_out_clients": ["1"]}},
    ),
]
FREE: dict[str, tuple[Run, Run]] = {
    "engine with the same bits": ({}, local(engine="fabric")),
    "faults": ({}, {"faults": Faults("skip", retries=1)}),
    "memory": ({}, {"storage": Storage(memory=0.5)}),
    "logger": ({}, {"flags": {"logger": True}}),
    "the same optimizer by other code": (task(SGD), task(lambda parameters: torch.optim.SGD(parameters, lr=0.1))),
    "the strategy's optimizer by hand": ({"strategy": FedAvg()}, sgd(lr=1.0)),
    "where data lie": ({"data": LazyData()}, {"data": LazyData()}),
    "a random transform of its own": ({"data": LazyData(noise=True)}, {"data": LazyData(noise=True)}),
}


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], str]:
    """The checkpoint that these settings write in their first round; the same settings train once."""
    made: dict[int, Path] = {}

    def find(before: Run) -> str:
        key = id(before) if before else 0
        if key not in made:
            made[key] = tmp_path_factory.mktemp("checkpoint")
            run(made[key], 1, before)
        return str(made[key] / "last.ckpt")

    return find


@pytest.mark.parametrize(("message", "after", "before"), MAY, ids=[message for message, *_ in MAY])
def test_a_changed_setting_is_refused_unless_on_purpose(message, after, before, checkpoint_of, tmp_path):
    path, now = checkpoint_of(before), {**before, **after}
    with pytest.raises(CheckpointError) as refused:
        run(tmp_path, 2, now, ckpt_path=path)
    assert message in str(refused.value)
    assert "set 'federation.checkpoints.resume_changed' to true" in str(refused.value)
    with pytest.warns(UserWarning, match="Resumed with changed settings") as warned:
        run(tmp_path, 1, now, ckpt_path=path, checkpoints=Checkpoints(resume_changed=True))  # restored, no round left to train
    assert any(message in str(warning.message) for warning in warned)


@pytest.mark.parametrize(("message", "after", "before"), MUST, ids=[message for message, *_ in MUST])
def test_what_must_stay_is_refused_in_any_case(message, after, before, checkpoint_of, tmp_path):
    for allowed in (False, True):
        checkpoints = Checkpoints(resume_changed=allowed)
        with pytest.raises(CheckpointError) as refused:
            run(tmp_path, 2, {**before, **after}, ckpt_path=checkpoint_of(before), checkpoints=checkpoints)
        assert message in str(refused.value)
        assert "'federation.checkpoints.resume_changed' does not allow changes to" in str(refused.value)
        assert "to true to change them" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_what_changes_no_result_is_free(name, checkpoint_of, tmp_path, recwarn):
    before, now = FREE[name]
    run(tmp_path, 2, {**before, **now}, ckpt_path=checkpoint_of(before))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 1
    assert not any("Resumed with changed" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize(("device", "same"), [("cpu", True), ("cuda", False)])
def test_auto_and_a_trainer_are_the_same_engine_on_a_cpu_alone(device, same):
    auto, one = (
        resume._with_engine({"federation": {"local": {"engine": name}}}, torch.device(device)) for name in ("auto", "trainer")
    )
    assert (auto == one) is same


def test_all_changes_are_in_one_message(checkpoint_of, tmp_path):
    now = {"module": Plain(lr=0.3), "strategy": FedAvg("uniform"), "seed": 4, **local(max_epochs=3)}
    with pytest.raises(CheckpointError) as refused:
        run(tmp_path, 2, now, ckpt_path=checkpoint_of({}))
    text = str(refused.value)
    for name in ("federation.strategy.weighting", "federation.local.max_epochs", "federation.seed", "model.lr"):
        assert text.count(f"'{name}' ") == 1
    assert text.endswith("'federation.checkpoints.resume_changed' does not allow changes to 'federation.seed'.")


def test_a_checkpoint_holds_the_settings_after_a_change(checkpoint_of, tmp_path):
    with pytest.warns(UserWarning, match="Resumed with changed settings"):
        run(tmp_path, 2, local(max_epochs=1), ckpt_path=checkpoint_of({}), checkpoints=Checkpoints(resume_changed=True))
    path = str(tmp_path / "last.ckpt")
    run(tmp_path, 3, local(max_epochs=1), ckpt_path=path)
    with pytest.raises(CheckpointError, match=r"'federation.local.max_epochs' 1, but this run has 2"):
        run(tmp_path, 4, {}, ckpt_path=path)


@pytest.mark.parametrize("own_loaders", [False, True])
def test_other_data_of_a_client_are_refused(own_loaders, tmp_path):
    def clients(south):
        sets = {"north": TensorDataset(*blobs(10, 1)), "south": south, "west": TensorDataset(*blobs(15, 3))}
        return {name: DataLoader(one, 5) for name, one in sets.items()} if own_loaders else sets

    def fit(south, **more):
        data = FederatedDataModule.from_clients(clients(south), **({} if own_loaders else {"batch_size": 5}))
        trainer(1, FederatedOrchestrator(), every_round(tmp_path), enable_checkpointing=True).fit(Plain(), data, **more)

    x, y = blobs(12, 2)
    fit(TensorDataset(x, y))
    for other in (TensorDataset(x + 1, y), TensorDataset(x[:9], y[:9])):
        with pytest.raises(CheckpointError) as refused:
            fit(other, ckpt_path=str(tmp_path / "last.ckpt"))
        assert re.search(r"'data.training_examples' '37 examples|'clients.examples'", str(refused.value))
