"""Tools of the Trainer that act on steps, and data that come as loaders."""

from __future__ import annotations

import copy
import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from command_line import small
from federations import Blobs, Consecutive, Plain, blobs, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    AdaFed,
    ClientPrivacy,
    ConfigurationError,
    DataError,
    ExamplePrivacy,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FlowerPool,
    IIDPartitioner,
    LocalTraining,
    SecureAggregation,
    ServerEvaluation,
)


class Milestones(LearningRateFinder):
    """As in Lightning's documentation: it would find a new rate at some epochs, which here are rounds."""


REFUSED = {
    "Milestones is a subclass of LearningRateFinder, which may tune rounds": lambda: Milestones(),
    "GradientAccumulationScheduler would accumulate rounds": lambda: GradientAccumulationScheduler({1: 2}),
    "ModelPruning would prune the server's weights": lambda: ModelPruning("l1_unstructured", amount=0.5),
    "StochasticWeightAveraging would set the rate of the server's optimizer": lambda: StochasticWeightAveraging(0.1),
    "BackboneFinetuning would set the rate of the server's optimizer": lambda: BackboneFinetuning(),
    "SpikeDetection would look for the loss of a training step": lambda: SpikeDetection(),
    "ThroughputMonitor would measure batches of examples": lambda: ThroughputMonitor(batch_size_fn=len),
}


@pytest.mark.parametrize("message", REFUSED)
def test_callbacks_that_act_on_steps(message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(batchnorm=True), 2, REFUSED[message]())


class Touching(Callback):
    """What a user might write for plain training: it acts on the optimizer of the Trainer, here the server's."""

    def __init__(self, hook: str, change: Any) -> None:
        setattr(self, hook, lambda run, *_: change(run) if run.current_epoch else None)


def to(run: Any, name: str, value: Any) -> None:
    run.optimizers[0].param_groups[0][name] = value


def replace(run: Any) -> None:
    run.optimizers = [torch.optim.SGD(run.lightning_module.parameters(), 1.0)]


def schedule(run: Any) -> None:
    run.lr_scheduler_configs.append(LRSchedulerConfig(StepLR(run.optimizers[0], 9)))


CHANGES: dict[str, Any] = {
    "set 'lr' of the server's optimizer from 1.0 to 0.5": lambda run: to(run, "lr", 0.5),
    "set 'momentum' of the server's optimizer from 0 to 0.9": lambda run: to(run, "momentum", 0.9),
    "added a group to the server's optimizer": lambda run: run.optimizers[0].add_param_group({"params": [torch.zeros(1)]}),
    "replaced the server's optimizer": replace,
    "added a schedule to the server's optimizer": schedule,
}


class Deaf(torch.optim.SGD):
    """Does not call its closure, in which Lightning calls hooks."""

    def step(self, closure: Any = None) -> None:
        super().step()


FROM = (
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_round_start",
    "on_aggregated",
    "on_before_optimizer_step",
    "on_validation_epoch_end",
)


@pytest.mark.parametrize(
    ("hook", "what"), [*((hook, next(iter(CHANGES))) for hook in FROM), *((FROM[0], what) for what in [*CHANGES][1:])]
)
def test_nothing_but_its_own_step_changes_the_servers_optimizer(hook, what):
    """Before the server steps with it: an average that counts for half would be no error that anybody sees."""
    module, means = Plain(), []

    class Keep(FederationCallback):
        def on_round_end(self, run: Any, pl_module: Any, round_idx: int) -> None:
            means.append(weights(pl_module))

    optimizer = Deaf if hook == "on_round_start" else torch.optim.SGD
    with pytest.raises(ConfigurationError) as caught:
        federate(module, 4, Keep(), Touching(hook, CHANGES[what]), server_optimizer=partial(optimizer, lr=1.0))
    message = rf"In round \d, a hook of Plain or a callback of the Trainer \(Keep, Touching\) has {what}\. .*"
    assert re.fullmatch(message + "'federation.server_optimizer'.*", str(caught.value)), caught.value
    kept = {name: value for name, value in weights(module).items() if "acc" not in name}
    assert all(torch.equal(kept[name], means[-1][name]) for name in kept)


def test_a_callback_changes_the_servers_optimizer_at_the_start():
    class Fast(Callback):
        def on_fit_start(self, run: Any, pl_module: Any) -> None:
            to(run, "lr", 3.0)

    run = trainer(1, Fast(), FederatedOrchestrator())
    with pytest.raises(ConfigurationError, match=r"round 0, .*\(Fast\) has set 'lr' of the server's optimizer from 1.0 to 3.0"):
        run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))


class CountsInItsGroups(torch.optim.SGD):
    """As schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = group["lr"] / 2


def test_the_servers_optimizer_may_change_its_own_settings(tmp_path):
    """Also where a resumed run restores them."""

    def run(rounds: int, **more: Any) -> Any:
        torch.manual_seed(1)
        module = Plain()
        flags = {"enable_checkpointing": True}
        done = federate(module, rounds, every_round(tmp_path), flags=flags, server_optimizer=halving, **more)
        return done.optimizers[0].param_groups[0], weights(module)

    def halving(parameters: Any) -> Any:
        return CountsInItsGroups(parameters, lr=1.0)

    whole = run(3)
    run(1)
    resumed = run(3, ckpt_path=str(tmp_path / "last.ckpt"))
    assert [(group["k"], group["lr"]) for group, _ in (whole, resumed)] == [(3, 0.125)] * 2
    assert same_bits(whole[1], resumed[1])


def hooked(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=2.0)
    optimizer.register_step_pre_hook(lambda its, *_: its.param_groups[0].update(lr=its.param_groups[0]["lr"] / 2))
    return optimizer


class HalvesFirst(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["lr"] /= 2
        return super().step(closure)


@pytest.mark.parametrize("build", [hooked, partial(HalvesFirst, lr=2.0)], ids=["hook", "step"])
def test_the_servers_optimizer_may_set_its_rate_before_its_step(build):
    rates = federate(Plain(), 2, server_optimizer=build).optimizers[0].param_groups
    assert rates[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("average", "decay"), [(WeightAveraging, None), (partial(EMAWeightAveraging, decay=0.75), 0.75)], ids=["mean", "ema"]
)
def test_averages_of_weights_are_those_of_the_rounds(average, decay):
    """What is refused above points here: the rounds are those of a run without it, and their average is the result."""
    found: list[dict[str, Any]] = []

    class Keep(FederationCallback):
        def on_round_end(self, run: Any, pl_module: Any, round_idx: int) -> None:
            found.append({name: p.detach().double() for name, p in pl_module.named_parameters()})

    torch.manual_seed(1)
    module = Plain(batchnorm=True)
    federate(copy.deepcopy(module), 3, Keep())
    federate(module, 3, average())
    for name, parameter in module.named_parameters():
        one, two, three = (each[name] for each in found)
        expected = (one + two + three) / 3 if decay is None else decay * (decay * one + 0.25 * two) + 0.25 * three
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=0, atol=1e-6)


AT_CLIENTS = {
    "ModelCheckpoint, which writes checkpoints": lambda: ModelCheckpoint(),
    "OnExceptionCheckpoint, which writes checkpoints": lambda: OnExceptionCheckpoint("."),
    "TQDMProgressBar, which shows progress": lambda: TQDMProgressBar(),
    "LearningRateFinder, which would tune each client anew": lambda: LearningRateFinder(),
    "BatchSizeFinder, which would tune each client anew": lambda: BatchSizeFinder(),
    "BackboneFinetuning, which freezes layers at the start of each turn": lambda: BackboneFinetuning(),
}


@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
@pytest.mark.parametrize("message", AT_CLIENTS)
def test_callbacks_that_a_client_does_not_serve(message, engine):
    local = LocalTraining(engine=engine, callbacks=[AT_CLIENTS[message]()])
    with pytest.raises(ConfigurationError, match=f"^'federation.local.callbacks' contains {message}"):
        federate(Plain(), 1, local=local)


SEEN: tuple[list[int], list[float]] = ([], [])


class Tuned(Plain):
    """Has a rate to tune, and notes the batches and rates of its steps."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        super().__init__()
        self.lr = 0.125

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        SEEN[0].append(len(batch[0]))
        SEEN[1].append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


@pytest.fixture
def seen() -> Any:
    for kept in SEEN:
        kept.clear()
    return SEEN


def federated(*callbacks: Any) -> Any:
    return trainer(1, *callbacks, FederatedOrchestrator())


def test_a_tuner_finds_the_rate_of_the_centralized_module(seen, caplog):
    """The same as Lightning's own Tuner on a Trainer without a federation, and the module's weights stay."""
    central, module = Tuned(), Tuned()
    torch.manual_seed(6)  # of the shuffling
    alone = Tuner(trainer(9)).lr_find(central, datamodule=FederatedDataModule(Blobs(), Consecutive()), num_training=30)
    run, data = federated(), FederatedDataModule(Blobs(), Consecutive())
    torch.manual_seed(6)
    with caplog.at_level("INFO"):
        found = Tuner(run).lr_find(module, datamodule=data, num_training=30)
    assert "LearningRateFinder tunes the centralized module, by plain training on the examples of all clients" in caplog.text
    assert found.results == alone.results
    assert module.lr == central.lr == found.suggestion() != 0.125
    assert same_bits(weights(module), weights(Tuned()))
    assert not any(isinstance(one, LearningRateFinder) for one in run.callbacks)
    seen[1].clear()
    run.fit(module, data)
    assert set(seen[1]) == {module.lr}


def test_a_tuner_finds_the_batch_size_of_all_clients(seen):
    run, data, module = federated(), FederatedDataModule(Blobs(), Consecutive()), Tuned()
    tuned = Tuner(run).scale_batch_size(module, datamodule=data, max_trials=2, steps_per_trial=1, init_val=4)
    assert set(seen[0]) == {5, 8}  # the first trial has the loader of before, in a plain run as well
    assert data.datamodule.batch_size == tuned == 8
    assert same_bits(weights(module), weights(Tuned()))
    seen[0].clear()
    run.fit(module, data)
    assert max(seen[0]) == 8


def test_tuning_callbacks_run_before_the_federation(seen):
    """Both in one fit, whose weights are those of a federation with the values they found; the next fit tunes anew."""
    finders = [BatchSizeFinder(max_trials=2, steps_per_trial=1, init_val=4), LearningRateFinder(num_training_steps=30)]
    run, data, module = federated(*finders), FederatedDataModule(Blobs(), Consecutive()), Tuned()
    run.fit(module, data)
    assert run.current_epoch == 1
    assert data.datamodule.batch_size == 8
    assert run.callbacks.count(finders[1]) == 1

    given = Tuned()
    given.lr = module.lr
    federated().fit(given, FederatedDataModule(Blobs(batch_size=8), Consecutive()))
    assert module.lr == finders[1].optimal_lr.suggestion()
    assert same_bits(weights(module), weights(given))


def test_tuning_by_command(fl, monkeypatch, tmp_path):
    """With a task of the package, whose adaptive loss and callbacks need a Trainer of their own."""
    found: list[tuple[int, int]] = []
    scale = BatchSizeFinder.scale_batch_size

    def look(self: BatchSizeFinder, trainer: Any, module: Any) -> None:
        try:
            scale(self, trainer, module)
        finally:
            found.append((self.optimal_batch_size, trainer.datamodule.datamodule.batch_size))

    monkeypatch.setattr(BatchSizeFinder, "scale_batch_size", look)
    tuner = ["--trainer.callbacks+=BatchSizeFinder", "--trainer.callbacks.init_val=8", "--trainer.callbacks.max_trials=2"]
    status, said = small(fl, *tuner, f"--trainer.default_root_dir={tmp_path}")
    assert status == 0, said
    assert found == [(16, 16)]
    assert not list(tmp_path.rglob(".scale_batch_size*"))


def test_callbacks_of_the_module_take_no_part_in_tuning():
    asked: list[Any] = []

    class Bringing(Tuned):
        def configure_callbacks(self) -> Any:
            asked.append(self.trainer)
            return []

    run, module = federated(LearningRateFinder(num_training_steps=5)), Bringing()
    run.fit(module, FederatedDataModule(Blobs(), Consecutive()))
    assert asked == [run]
    assert module.configure_callbacks() == []


def test_tuners_need_all_examples_in_one_process(monkeypatch):
    """Before any site is asked for anything."""
    data = FederatedDataModule(Blobs(), Consecutive())
    remote = trainer(1, LearningRateFinder(), FederatedOrchestrator(pool=FlowerPool()))
    with pytest.raises(ConfigurationError, match=r"tunes the centralized module in one process.* but these are at their sites"):
        remote.fit(Tuned(), data)
    run = federated(LearningRateFinder())
    monkeypatch.setattr(type(run), "world_size", 2)
    with pytest.raises(ConfigurationError, match=r"LearningRateFinder tunes .* but the Trainer has 2 ranks\. Tune in a simu"):
        run.fit(Tuned(), data)


def test_train_steps_of_a_checkpoint_callback_are_rounds(tmp_path):
    def run(*callbacks: Any, ckpt: Any = None) -> Any:
        torch.manual_seed(1)
        module = Plain()
        federate(module, 4, *callbacks, flags={"enable_checkpointing": True}, ckpt_path=ckpt)
        return weights(module)

    whole = run(ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1))
    assert {path.name for path in tmp_path.iterdir()} == {"epoch=1-step=2.ckpt", "epoch=3-step=4.ckpt"}
    assert same_bits(run(ckpt=str(tmp_path / "epoch=1-step=2.ckpt")), whole)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"train_time_interval": timedelta(0)}, [1, 2, 3]),
        ({"train_time_interval": timedelta(days=1)}, []),
        ({"every_n_train_steps": 2}, [2]),
    ],
)
def test_a_checkpoint_callback_sees_a_round_as_a_step_of_automatic_optimization(tmp_path, settings, rounds, recwarn):
    """As in plain Lightning, whatever the server's own step needs."""
    federate(Plain(), 3, ModelCheckpoint(tmp_path, save_top_k=-1, **settings), flags={"enable_checkpointing": True})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"epoch={n - 1}-step={n}.ckpt" for n in rounds]
    assert not [str(one.message) for one in recwarn if "manual optimization" in str(one.message)]


class Marks(ModelCheckpoint):
    def on_train_batch_end(self, run: Any, pl_module: Any, *more: Any) -> None:
        assert isinstance(pl_module, Plain)
        pl_module.marker = self.every_n_train_steps if hasattr(self, "every_n_train_steps") else 1
        super().on_train_batch_end(run, pl_module, *more)


def test_a_checkpoint_callback_of_ones_own_reaches_the_module(tmp_path):
    module = Plain()
    federate(module, 1, Marks(tmp_path), flags={"enable_checkpointing": True})
    assert module.marker


def test_validation_inside_a_round():
    with pytest.raises(ConfigurationError, match=r"'trainer.val_check_interval' is 3, but a federation validates between"):
        federate(Plain(), 2, flags={"val_check_interval": 3})


def test_without_a_federation_the_tools_are_free():
    run = trainer(2, FederatedOrchestrator(enabled=False), GradientAccumulationScheduler({1: 2}))
    run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    assert run.accumulate_grad_batches == 2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"local": LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))}, "'federation.local.privacy' protects nothing"),
        ({"transforms": [ClientPrivacy(1.0, 1.0)]}, "ClientPrivacy protects nothing"),
        ({"secure_aggregation": SecureAggregation()}, "'federation.secure_aggregation' protects nothing"),
    ],
)
def test_central_training_says_that_nothing_is_private(settings, named):
    with pytest.warns(UserWarning, match=f"'federation.enabled' is false, so the module trains .* in one place, and {named}"):
        trainer(1, FederatedOrchestrator(enabled=False, **settings)).fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))


def loader(seed: int, n: int, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*blobs(n, seed)), **settings)


def test_loaders_instead_of_a_datamodule():
    found = []
    given = FederatedDataModule.from_loaders(
        loader(1, 40, batch_size=5, shuffle=True), loader(2, 61, batch_size=16), partitioner=Consecutive()
    )
    for data in (FederatedDataModule(Blobs(), Consecutive()), given):
        torch.manual_seed(3)
        module = Plain()
        run = trainer(2, FederatedOrchestrator())
        run.fit(module, data)
        assert "val_acc" in run.callback_metrics
        found.append(weights(module))
    assert same_bits(*found)


def test_what_to_write_for_loaders():
    with pytest.raises(ConfigurationError, match=r"FederatedDataModule.from_loaders\(train_loader, val_loader, part"):
        trainer(1, FederatedOrchestrator()).fit(Plain(), loader(1, 40, batch_size=5), loader(2, 61, batch_size=16))
    with pytest.raises(
        ConfigurationError, match=r"is a torch.utils.data.dataloader.DataLoader. Write FederatedDataModule.from_l"
    ):
        FederatedDataModule(loader(1, 40), IIDPartitioner(2))


class Several(Blobs):
    """Two validation sets, the second one with wrong labels."""

    def __init__(self, kind: type = list) -> None:
        super().__init__()
        self.kind = kind

    def val_dataloader(self) -> Any:
        x, y = self.val
        loaders = [DataLoader(TensorDataset(x, labels), 16) for labels in (y, 2 - y)]
        return dict(zip("ab", loaders, strict=True)) if self.kind is dict else loaders


class Both(Plain):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        accuracy = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("acc", accuracy, batch_size=len(batch[1]))


@pytest.mark.parametrize("kind", [list, dict])
def test_several_validation_loaders(kind):
    """AdaFed weighs by the loader that its metric names; the others have columns of their own."""
    scores = []

    class Scores(FederationCallback):
        def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
            scores.append(update.score)

    strategy = AdaFed("acc/dataloader_idx_1")
    run = federate(Both(), 2, Scores(), data=Several(kind), strategy=strategy)
    assert {"acc/dataloader_idx_0", "acc/dataloader_idx_1"} <= run.callback_metrics.keys()
    assert run.callback_metrics["acc/dataloader_idx_0"] > 0.6
    assert max(scores) < 0.5
    with pytest.raises(
        ConfigurationError, match=r"The metric for models is 'acc'.* It logs: acc/dataloader_idx_0, acc/dataload"
    ):
        federate(Both(), 1, data=Several(kind), strategy=AdaFed("acc"), flags={"num_sanity_val_steps": 0})
    with pytest.raises(DataError, match=r"'federation.server_evaluation' cannot divide a (list|dict)"):
        federate(Both(), 1, data=Several(kind), strategy=strategy, server_evaluation=ServerEvaluation(examples=0.5))


class Subclass(DataLoader[Any]):
    pass


def test_a_subclass_of_dataloader_is_named():
    class Data(Blobs):
        def train_dataloader(self) -> Any:
            return Subclass(TensorDataset(*self.train), batch_size=5)

    with pytest.warns(
        UserWarning, match=r"Data.train_dataloader\(\) returns a Subclass, but clients get a plain torch DataLoader"
    ):
        federate(Plain(), 1, data=Data())


def test_the_other_package():
    """Its classes have the same names, but are not Lightning's: lightly and others import them."""
    other = pytest.importorskip("pytorch_lightning")
    demos = pytest.importorskip("pytorch_lightning.demos.boring_classes")
    flags = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    message = "import from 'lightning.pytorch' instead of 'pytorch_lightning'"
    for given in ({"datamodule": FederatedDataModule(Blobs(), Consecutive())}, {}):
        run = other.Trainer(max_epochs=1, callbacks=[FederatedOrchestrator()], **flags)
        with pytest.raises(ConfigurationError, match=message):
            run.fit(demos.BoringModel(), **given)

    class Own(demos.BoringDataModule):
        pass

    with pytest.raises(ConfigurationError, match=f"is a test_outer_tools.*Own. .*{message}"):
        FederatedDataModule(Own(), IIDPartitioner(2))
    with pytest.raises(ConfigurationError, match=f"The data of client 'a' are a Own. .*{message}"):
        FederatedDataModule.from_clients({"a": Own()})
    with pytest.raises(TypeError, match="switch to a single import style"):  # Lightning's own words
        federate(demos.BoringModel(), 1)


class Own(FederatedOrchestrator):
    """A user's subclass."""


@pytest.mark.parametrize("second", [FederatedOrchestrator, Own])
def test_two_federations_of_one_module(second):
    said = (
        f"^The Trainer has 2 callbacks that federate the module: FederatedOrchestrator, {second.__name__}. Keep one of them.$"
    )
    with pytest.raises(ConfigurationError, match=said):
        federate(Plain(), 1, second())
    assert federate(Plain(), 1, second(enabled=False)).global_step == 1
