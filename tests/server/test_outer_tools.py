"""Tools of the Trainer that act on steps."""

import copy
import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, WeightAveraging
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim.lr_scheduler import StepLR

from fl_lightning import (
    ClientPrivacy,
    ConfigurationError,
    ExamplePrivacy,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    LocalTraining,
    SecureAggregation,
)


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


@pytest.mark.slow
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


class CountsInItsGroups(torch.optim.SGD):
    """Changes its settings in each step, as schedule-free optimizers do, and its rate before."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["lr"] /= 2
        super().step()
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1


def hooked(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    optimizer.register_step_pre_hook(lambda its, *_: its.param_groups[0].update(lr=its.param_groups[0]["lr"] / 2))
    return optimizer


@pytest.mark.parametrize("build", [partial(CountsInItsGroups, lr=1.0), hooked], ids=["step", "hook"])
def test_the_servers_optimizer_may_change_its_own_settings(build, tmp_path):
    """Also where a resumed run restores them."""
    flags = {"enable_checkpointing": True}
    federate(Plain(), 1, every_round(tmp_path), server_optimizer=build, flags=flags)
    run = federate(Plain(), 3, server_optimizer=build, ckpt_path=str(tmp_path / "last.ckpt"))
    group = run.optimizers[0].param_groups[0]
    assert group["lr"] == 0.125
    assert group.get("k", 3) == 3


@pytest.mark.slow
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


def test_tuners_run_without_the_federation_which_takes_what_they_find():
    """On all clients' examples, with the same results as Lightning's own Tuner; the federation refuses them."""
    central, module, data = Tuned(), Tuned(), FederatedDataModule(Blobs(), Consecutive())
    torch.manual_seed(6)  # of the shuffling
    alone = Tuner(trainer(9)).lr_find(central, datamodule=FederatedDataModule(Blobs(), Consecutive()), num_training=30)
    torch.manual_seed(6)
    run = trainer(9, FederatedOrchestrator(enabled=False))
    assert Tuner(run).lr_find(module, datamodule=data, num_training=30).results == alone.results
    assert module.lr == central.lr != 0.125
    assert Tuner(run).scale_batch_size(module, datamodule=data, max_trials=2, steps_per_trial=1, init_val=4) == 8
    assert same_bits(weights(module), weights(Tuned()))
    for noted in SEEN:
        noted.clear()
    with pytest.raises(ConfigurationError, match=r"LearningRateFinder would tune rounds .* Tune without a federation \('fed"):
        Tuner(trainer(1, FederatedOrchestrator())).lr_find(module, datamodule=data)
    trainer(1, FederatedOrchestrator()).fit(module, data)
    assert (max(SEEN[0]), set(SEEN[1])) == (8, {module.lr})


class Marks(ModelCheckpoint):
    """Of the user's own; reaches the module."""

    def on_train_batch_end(self, run: Any, pl_module: Any, *more: Any) -> None:
        pl_module.marker = isinstance(pl_module, Plain)
        super().on_train_batch_end(run, pl_module, *more)


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
    module = Plain()
    federate(module, 3, Marks(tmp_path, save_top_k=-1, **settings), flags={"enable_checkpointing": True})
    assert module.marker
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"epoch={n - 1}-step={n}.ckpt" for n in rounds]
    assert not [str(one.message) for one in recwarn if "manual optimization" in str(one.message)]


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
