"""What modules hide from a copy, a turn or a round: such a federation is plain Lightning all the same, or says why not."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import pytest
import torch
from against_hand import Updates
from federations import SIZES, Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.utilities.types import LRSchedulerConfig
from plain_training import InOrder, distance_from_plain, federated_weights
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback, LocalTraining, PartialWork
from fl_lightning.clients.isolation.client_copy import client_copy
from fl_lightning.errors import ConfigurationError, DataError, EngineError

ENGINES = ["trainer", "fabric"]


# ---------------------------------------------------------------- precision


class OwnAutocast(Plain):
    """Casts its own forward pass, as many modules do; torch caches the cast weights until the outermost context ends."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self(batch[0])
        return F.cross_entropy(logits.float(), batch[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_module_with_its_own_autocast_trains_on_its_weights_of_now(engine, precision):
    assert distance_from_plain(OwnAutocast, engine, dtype=torch.float32, precision=precision) < 1e-6


class MakesTensors(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        seen.add(torch.zeros(1).dtype)
        return super().training_step(batch, batch_idx)


seen: set[Any] = set()


@pytest.mark.parametrize("engine", ENGINES)
def test_new_tensors_have_the_users_default_type(engine):
    torch.set_default_dtype(torch.float64)
    try:
        for precision in ("32-true", "64-true"):
            seen.clear()
            distance_from_plain(MakesTensors, engine, rounds=1, precision=precision)
            assert seen == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- the start of a turn


class TowardsStart(torch.optim.SGD):
    """Remembers the weights when it is built, as Lookahead and others do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.anchors = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for parameter, anchor in zip(self.param_groups[0]["params"], self.anchors, strict=True):
                parameter.lerp_(anchor, 0.3)
        return loss


class Anchored(Plain):
    def configure_optimizers(self) -> Any:
        return TowardsStart(self.parameters(), 0.1)


class AnchoredInSetup(Plain):
    def setup(self, stage: str) -> None:
        self.anchor = self.net[0].weight.detach().clone()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + (self.net[0].weight - self.anchor).square().sum()


class Models(FederationCallback):
    """Keeps what each client sent."""

    def __init__(self) -> None:
        self.sent: dict[int, Tensor] = {}

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.sent[update.client] = update.snapshot.vector.clone()


def client_by_client(make: Callable[[], Plain], **local: Any) -> float:
    """How far the clients of a first round are from plain training, each alone, from the same start."""
    torch.manual_seed(3)
    module, models = make().double(), Models()
    start = copy.deepcopy(module)
    federate(
        module,
        1,
        models,
        data=Blobs(shuffle=False, dtype=torch.float64),
        local=LocalTraining(precision="64-true", **local),
        flags={"precision": "64-true"},
    )
    found = []
    parts = [part.split(list(SIZES)) for part in Blobs(dtype=torch.float64).train]
    for client, examples in enumerate(zip(*parts, strict=True)):
        alone = copy.deepcopy(start)
        trainer(local.get("max_epochs", 1), precision="64-true").fit(alone, InOrder(examples))
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in alone.parameters()])
        found.append(float((vector - models.sent[client][: len(vector)]).abs().max()))
    return max(found)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_configuring_an_optimizer_changes_are_those_of_the_round(engine):
    class Zeroes(Plain):
        def configure_optimizers(self) -> Any:
            torch.nn.init.zeros_(self.net[0].weight)
            return super().configure_optimizers()

    torch.manual_seed(3)
    module, same = Zeroes(), Plain()
    same.load_state_dict(module.state_dict())
    for one in (module, same):
        federate(one, 2, local=LocalTraining(engine=engine))
    assert same_bits(weights(module), weights(same))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [Plain, Anchored, AnchoredInSetup])
def test_setup_and_optimizers_find_the_global_model(make, engine):
    assert client_by_client(make, engine=engine) < 1e-12


# ---------------------------------------------------------------- what a copy could leave at the user's module


class WithLambda(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.encode = lambda x: self.net(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


class WithDefault(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [lambda x, part=part: part(x) for part in self.net]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class WithHook(Plain):
    """Reads what a hook has noted, in an attribute and in a local dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.features: dict[str, Tensor] = {}
        noted: dict[str, Tensor] = {}
        self.noted = noted
        self.net[0].register_forward_hook(lambda part, given, output: self.features.update(output=output))
        self.net[0].register_forward_hook(lambda part, given, output: noted.update(output=output))
        self.net[0].register_forward_pre_hook(lambda part, given: (given[0] + self.net[2].bias.sum(),))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss + self.features["output"].square().mean() + self.noted.pop("output").mean()


class Child(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.parent().net[2].weight)


class WithWeakReference(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.child = Child(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.child(self.net[1](self.net[0](x)))


class Masked(Plain):
    """Masks a gradient by a hook, and sets rates by attributes of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].weight.register_hook(lambda gradient: gradient * 0)
        self.net[0].bias.register_hook(self.halve)
        self.net[2].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", parameter.grad / 2))
        self.net[2].bias.scale = 0.1

    def halve(self, gradient: Tensor) -> Tensor:
        return gradient * 0.5

    def configure_optimizers(self) -> Any:
        rates = [{"params": [p], "lr": 0.1 * getattr(p, "scale", 1.0)} for p in self.parameters()]
        return torch.optim.SGD(rates, lr=0.1)


class ListsSomeParameters(Plain):
    """Leaves a frozen part out of the parameters that it lists, as those who pass ``self.parameters()`` to an optimizer do."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(3, 2).requires_grad_(False)

    def parameters(self, recurse: bool = True) -> Any:
        return self.net.parameters(recurse)


class NamesSomeParameters(Plain):
    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return ((name, own) for name, own in super().named_parameters(*args, **kwargs) if "bias" not in name)


HIDING = [WithLambda, WithDefault, WithHook, WithWeakReference, Masked]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", HIDING)
def test_what_refers_to_the_module_refers_to_the_clients_copy(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [ListsSomeParameters, NamesSomeParameters])
def test_parameters_that_a_module_does_not_list_are_federated(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


@pytest.mark.parametrize("make", [ListsSomeParameters, NamesSomeParameters])
def test_parameters_that_a_module_does_not_list_are_stacked(make):
    trained = []
    for engine in ("trainer", "stacked"):
        torch.manual_seed(0)
        module = make()
        federation = FederatedOrchestrator(local=LocalTraining(engine=engine))
        trainer(2, federation).fit(module, FederatedDataModule(Blobs(24, shuffle=False), Consecutive([8, 8, 8])))
        trained.append(weights(module))
    assert max(float((one - other).abs().max()) for one, other in zip(*(own.values() for own in trained), strict=True)) < 1e-6


def test_functions_that_do_not_refer_to_the_module_are_shared():
    class Shares(Plain):
        def __init__(self) -> None:
            super().__init__()
            lock = threading.Lock()  # cannot be copied
            self.locked = lambda: lock
            self.helper = F.relu

    module = Shares()
    run = trainer(1)
    module.trainer, module.asks = run, lambda: run
    client = client_copy(module)
    assert client.asks is module.asks
    assert client.locked is module.locked
    assert client.helper is module.helper


def test_functions_may_refer_to_each_other():
    class Circle(Plain):
        def __init__(self) -> None:
            super().__init__()

            def even(n: int) -> nn.Module:
                return self.net if n == 0 else odd(n - 1)

            def odd(n: int) -> nn.Module:
                return even(n - 1)

            self.even, self.odd = even, odd

    module = Circle()
    client = client_copy(module)
    assert client.even(4) is client.net
    assert client.odd(3) is client.net
    assert module.even(4) is module.net


# ---------------------------------------------------------------- the end of a turn


class Undecided(Plain):
    """Sets ``should_stop`` after every epoch and step, as a condition that is written as one line does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trainer.should_stop = False

    def on_train_epoch_end(self) -> None:
        epochs.append(self.current_epoch)
        assert len(epochs) < 20, "the turn does not end"
        self.trainer.should_stop = self.current_epoch == 100


epochs: list[int] = []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("local", [{"max_epochs": 2}, {"max_epochs": 2, "progress": "round", "optimizer_state": "fresh"}])
def test_a_turn_ends_although_the_module_says_that_it_goes_on(local, engine):
    epochs.clear()
    federate(Undecided(), 3, data=Blobs(), partitioner=Consecutive([40]), local=LocalTraining(engine=engine, **local))
    assert len(epochs) == 3 * 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("more", [{"max_steps": 3}, {"partial_work": PartialWork(share=1.0)}])
def test_steps_end_although_the_module_says_that_it_goes_on(more, engine):
    epochs.clear()
    updates = Updates()
    federate(Undecided(), 2, updates, local=LocalTraining(engine=engine, max_epochs=4, **more))
    assert all(update.num_steps <= 3 * 3 for updates_of in updates.rounds for update in updates_of)
    assert len(epochs) < 20


# ---------------------------------------------------------------- samplers


class ByEpoch(Sampler[int]):
    """Shuffles by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(23, generator=torch.Generator().manual_seed(self.epoch)).tolist())


def trained_on(engine: Any, **loading: Any) -> dict[str, Tensor]:
    """The weights after three rounds of two epochs of one client with a loader of its own."""
    torch.manual_seed(3)
    module, x, y = Plain(), *Blobs(23).train
    data = FederatedDataModule.from_clients({"a": DataLoader(TensorDataset(x, y), **loading)}, val=TensorDataset(x, y))
    orchestrator = FederatedOrchestrator(local=LocalTraining(max_epochs=2, engine=engine, optimizer_state="kept"))
    trainer(3, orchestrator).fit(module, data)
    return weights(module)


def plainly_trained_on(**loading: Any) -> dict[str, Tensor]:
    torch.manual_seed(3)
    module, x, y = Plain(), *Blobs(23).train
    trainer(6).fit(module, DataLoader(TensorDataset(x, y), **loading))
    return weights(module)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "by epoch": lambda: {"batch_size": 5, "sampler": ByEpoch()},
    "batches by epoch": lambda: {"batch_sampler": BatchSampler(ByEpoch(), 5, False)},
    "batches in order": lambda: {"batch_sampler": BatchSampler(SequentialSampler(range(23)), 4, True)},
    "list": lambda: {"batch_size": 5, "sampler": list(range(23))},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_a_client_are_those_of_plain_training(name, engine):
    expected, found = plainly_trained_on(**SAMPLERS[name]()), trained_on(engine, **SAMPLERS[name]())
    assert max(float((expected[key] - found[key]).abs().max()) for key in expected) < 1e-6


def test_a_list_may_be_the_sampler_of_a_loader_that_is_divided():
    x, y = Blobs(23).train
    loader = DataLoader(TensorDataset(x, y), 5, sampler=list(range(23)))
    module = Plain()
    data = FederatedDataModule.from_loaders(loader, loader, partitioner=Consecutive([10, 13]))
    before = weights(module)
    trainer(1, FederatedOrchestrator()).fit(module, data)
    assert not same_bits(weights(module), before)


# ---------------------------------------------------------------- optimizers and schedules


class LowersRates(Plain):
    """Changes its optimizer by hand after each epoch."""

    def on_train_epoch_end(self) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.8
            group["weight_decay"] += 0.01


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as several optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = 0.3 / group["k"]
        return super().step(closure)


class Counted(Plain):
    def configure_optimizers(self) -> Any:
        return Counting(self.parameters(), lr=0.3)


class DecaysWithASchedule(Plain):
    """A schedule sets the rates, and the module the weight decay."""

    def on_train_epoch_end(self) -> None:
        for group in self.optimizers().param_groups:
            group["weight_decay"] += 0.01

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class ByTheEpoch(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        return [optimizer], [LambdaLR(optimizer, lambda _: 1 / (1 + self.trainer.current_epoch))]


class ByTheStep(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        schedule = LambdaLR(optimizer, lambda _: 1 / (1 + self.global_step + 7 * self.current_epoch))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [LowersRates, Counted, DecaysWithASchedule, ByTheEpoch, ByTheStep])
def test_settings_of_optimizers_continue_over_rounds(make, engine):
    assert distance_from_plain(make, engine, rounds=4) < 1e-12


def test_settings_that_training_changed_are_scaled_once_by_the_decay_of_the_round():
    rates: list[float] = []

    class Halves(Plain):
        def on_train_epoch_start(self) -> None:
            (group,) = self.optimizers().param_groups
            rates.append(group["lr"])
            if self.current_epoch == 1:
                group["lr"] /= 2

    local = LocalTraining(lr_decay=0.5, optimizer_state="kept")
    federate(Halves(lr=0.8), 4, data=Blobs(10), partitioner=Consecutive([10]), local=local)
    assert rates == pytest.approx([0.8, 0.4, 0.1, 0.05])


def test_another_kind_of_optimizer_than_in_the_last_turn_is_refused():
    class Switching(Plain):
        switched = False

        def on_train_epoch_end(self) -> None:
            self.switched = True

        def configure_optimizers(self) -> Any:
            return (torch.optim.Adagrad if self.switched else torch.optim.Adam)(self.parameters())

    with pytest.raises(ConfigurationError, match=r"optimizers are of other classes .*Adagrad.* 'kept'"):
        federate(Switching(), 2, local=LocalTraining(optimizer_state="kept"))


class ThawsOnce(Plain):
    """As in Lightning's own finetuning: another group from the second epoch on."""

    def configure_optimizers(self) -> Any:
        self.net[0].requires_grad_(False)
        return torch.optim.SGD(self.net[2].parameters(), 0.1)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.net[0].parameters())})


class ReplacesOnce(Plain):
    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers = [torch.optim.SGD(self.parameters(), 0.01)]


class SchedulesOnce(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 5:
            schedule = torch.optim.lr_scheduler.StepLR(self.optimizers().optimizer, 1, 0.1)
            self.trainer.lr_scheduler_configs.append(LRSchedulerConfig(schedule))


@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize(
    ("make", "engine"),
    [(ThawsOnce, "trainer"), (ThawsOnce, "fabric"), (ReplacesOnce, "trainer"), (SchedulesOnce, "trainer")],
)
def test_other_optimizers_in_the_middle_of_a_training_are_refused(make, engine, state):
    """The next turn would begin without them; where each turn is a training of its own, it is plain training."""
    settings: dict[str, Any] = {"engine": engine, "optimizer_state": state, "max_epochs": 1}
    said = rf"{make.__name__} or a callback .* 'trainer.optimizers' or their schedules .* those of 'configure_optimizers'"
    with pytest.raises(ConfigurationError, match=said):
        federated_weights(make, 3, torch.float64, {}, {}, **settings)
    assert distance_from_plain(make, engine, rounds=1, epochs=3, progress="round", optimizer_state=state) < 1e-12


class AddsInEachTurn(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[2].parameters(), 0.1)

    def on_train_start(self) -> None:
        self.optimizers().add_param_group({"params": list(self.net[0].parameters())})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_each_turn_adds_at_its_start_trains_in_each(engine):
    assert distance_from_plain(AddsInEachTurn, engine, optimizer_state="fresh") < 1e-12


# ---------------------------------------------------------------- what training changes in a module


class Cools(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.hparams.temperature = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.hparams.temperature *= 0.9
        self.hparams.late = 0.9 * self.hparams.get("late", 1.0)
        return super().training_step(batch, batch_idx) * self.hparams.temperature * self.hparams.late


class FreezesOnce(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 1:
            self.net[0].requires_grad_(False)
        return super().training_step(batch, batch_idx)


class RestsOnce(Plain):
    def __init__(self) -> None:
        super().__init__(batchnorm=True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 1:
            self.net[1].eval()
        return super().training_step(batch, batch_idx)


class Hooks(Plain):
    def on_train_start(self) -> None:
        if self.current_epoch == 0:
            self.net[0].register_forward_hook(lambda part, given, output: output * 1.5)


class HooksGradients(Plain):
    def on_fit_start(self) -> None:
        self.net[0].weight.register_hook(lambda gradient: gradient * 0.5)
        self.net[2].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", parameter.grad / 2))


class Accumulates(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trainer.accumulate_grad_batches = 1 + batch_idx


CHANGING = [Cools, FreezesOnce, RestsOnce, Hooks, HooksGradients, Accumulates]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", CHANGING)
def test_no_client_finds_what_another_changed(make, engine):
    if make is Accumulates and engine == "fabric":
        with pytest.raises(EngineError, match=r"Accumulates sets 'trainer.accumulate_grad_batches'"):
            client_by_client(make, engine=engine)
    else:
        assert client_by_client(make, engine=engine, **({"progress": "round"} if make is Accumulates else {})) < 1e-12


class Stepped(Plain):
    """Has a rate that depends on the number of steps, of which each epoch has five."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class AccumulatesLater(Stepped):
    def on_train_epoch_start(self) -> None:
        self.trainer.accumulate_grad_batches = 1 + (self.current_epoch > 1)


class CutsLater(Stepped):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if self.current_epoch > 1 and batch_idx == 3 else None


class StopsEarly(Stepped):
    """Its turn ends, not its training: it goes on where the turn was planned to end."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trainer.should_stop = batch_idx == 2


@pytest.mark.parametrize(("make", "engine"), [(AccumulatesLater, "trainer"), (CutsLater, "trainer"), (CutsLater, "fabric")])
def test_other_numbers_of_steps_than_planned_are_refused(make, engine):
    """A client's place in the whole training is computed from the planned steps: schedules would have wrong rates."""
    said = f"{make.__name__} has made 3 steps by the end of epoch 2, where 5 of .* 'federation.local.accumulate_grad_batches'"
    with pytest.raises(ConfigurationError, match=said):
        distance_from_plain(make, engine, rounds=4)
    assert distance_from_plain(make, engine, rounds=1, epochs=4, progress="round") < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_a_turn_that_is_stopped_in_an_epoch_has_fewer_steps(engine):
    run = federate(StopsEarly(), 2, local=LocalTraining(engine=engine))
    assert run.global_step == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [Cools, FreezesOnce, RestsOnce, HooksGradients])
def test_a_client_finds_what_it_changed(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


class Restores(Plain):
    """Attributes that the server's module changes, and finds again in a checkpoint; clients find those of the start."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.history = 1.0, [1.0]

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.scale *= 0.5
            self.history.append(self.scale)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["restored"] = {"scale": self.scale, "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        vars(self).update(checkpoint["restored"])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * self.scale * len(self.history)


@pytest.mark.parametrize("make", [Cools, FreezesOnce, RestsOnce, LowersRates, Counted, Restores])
def test_what_clients_changed_is_in_checkpoints(make, tmp_path):
    ends = []
    for rounds in ((3,), (2, 3)):
        for number, end in enumerate(rounds):
            torch.manual_seed(3)
            module = make()
            checkpoint = str(tmp_path / "last.ckpt") if number else None
            federate(
                module,
                end,
                every_round(tmp_path),
                ckpt_path=checkpoint,
                local=LocalTraining(optimizer_state="kept"),
                flags={"enable_checkpointing": True},
            )
        ends.append(weights(module))
    assert same_bits(*ends)


def test_a_layer_that_training_replaces_is_named():
    class Replaces(Plain):
        def on_train_epoch_start(self) -> None:
            self.net[2] = nn.Linear(8, 3)

    with pytest.raises(ConfigurationError, match=r"Training replaced the layer of 'net.2.weight' of Replaces"):
        federate(Replaces(), 1)


def test_a_layer_without_weights_that_training_replaces_is_that_of_the_start_in_the_next_turn():
    kinds: list[str] = []

    class Replaces(Plain):
        def on_train_epoch_start(self) -> None:
            kinds.append(type(self.net[1]).__name__)
            self.net[1] = nn.ReLU(inplace=True)

    with pytest.warns(UserWarning, match=r"Training changed 'net.1' of Replaces"):
        federate(Replaces(), 2, local=LocalTraining())
    assert kinds == ["Tanh"] * 6


def test_an_object_in_the_place_of_a_plain_value_is_named():
    class Box:
        scale = 1.0

    class Boxes(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.box: Any = None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.box = self.box or Box()
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match=r"Training changed 'box' of Boxes"):
        federate(Boxes(), 1)


def test_weights_that_a_layer_computes_from_others_are_not_named(recwarn):
    class Normed(Plain):
        def __init__(self) -> None:
            super().__init__()
            nn.utils.prune.random_unstructured(self.net[0], "weight", 0.5)
            nn.utils.weight_norm(self.net[2])

    federate(Normed(), 2)
    assert not [str(w.message) for w in recwarn if "Training changed" in str(w.message)]


# ---------------------------------------------------------------- what a module may ask of its data


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_may_ask_for_the_number_of_its_examples(engine):
    sizes: set[int] = set()

    class Asks(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            sizes.add(len(self.trainer.train_dataloader.dataset))
            x, y = self.trainer.train_dataloader.dataset[0]
            assert (x.shape, y.shape) == ((4,), ())
            return super().training_step(batch, batch_idx)

    federate(Asks(), 1, local=LocalTraining(engine=engine))
    assert sizes == set(SIZES)


def test_several_loaders_of_a_client_are_refused():
    class Two(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            loader = Blobs().train_dataloader()
            return {"one": loader, "two": loader}

    data = FederatedDataModule.from_clients({"a": Two()}, val=TensorDataset(*Blobs().val))
    with pytest.raises(DataError, match=r"'train_dataloader' of client 'a' returns a dict .* Return one DataLoader"):
        trainer(1, FederatedOrchestrator()).fit(Plain(), data)


def test_reloading_the_training_set_is_refused():
    with pytest.raises(ConfigurationError, match=r"'trainer.reload_dataloaders_every_n_epochs' is 1, but .* Remove it"):
        federate(Plain(), 1, flags={"reload_dataloaders_every_n_epochs": 1})


def test_a_scripted_part_is_refused():
    class Scripted(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net[0] = torch.jit.script(self.net[0])

    with pytest.raises(ConfigurationError, match=r"Cannot copy 'net.0.weight' of Scripted .* torch.jit.script"):
        federate(Scripted(), 1)


def test_a_callback_that_thaws_layers_once_is_refused_at_the_clients():
    """It would thaw them in each turn's own optimizer, and expects the learning rates of the turn before."""
    local = LocalTraining(callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=3)])
    with pytest.raises(ConfigurationError, match=r"'federation.local.callbacks' .* BackboneFinetuning.* TransferLearning"):
        federate(Plain(), 1, local=local)


class Shadow(Callback):
    """A user's own average of the weights."""

    shadow: Any = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        now = [parameter.detach().clone() for parameter in pl_module.parameters()]
        self.shadow = now if self.shadow is None else [(one + other) / 2 for one, other in zip(self.shadow, now, strict=True)]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        for parameter, average in zip(pl_module.parameters(), self.shadow, strict=True):
            parameter.data.copy_(average)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}


LASTING: dict[str, Any] = {
    "StochasticWeightAveraging, which averages": lambda: StochasticWeightAveraging(0.1, swa_epoch_start=1),
    "WeightAveraging, which averages over a training, .* averages the global model over rounds": WeightAveraging,
    "EMAWeightAveraging, which averages": lambda: EMAWeightAveraging(decay=0.5),
    "ModelPruning, which prunes anew in every turn": lambda: ModelPruning("l1_unstructured", amount=0.3),
    "GradientAccumulationScheduler, which changes": lambda: GradientAccumulationScheduler({0: 1, 2: 2}),
    "Shadow, which keeps a state for the rest of a training .'state_dict'.": Shadow,
    "LambdaCallback, which keeps a state .* .'on_save_checkpoint'.": lambda: LambdaCallback(on_save_checkpoint=print),
}


@pytest.mark.parametrize("what", LASTING)
def test_callbacks_that_outlast_a_turn_are_refused_where_trainings_do(what):
    """They would begin anew in each turn: average, prune or count a part."""
    said = f"^'federation.local.callbacks' contains {what}.* set 'federation.local.progress' to 'round'"
    with pytest.raises(ConfigurationError, match=said):
        federate(Plain(), 1, local=LocalTraining(callbacks=[LASTING[what]()]))


@pytest.mark.parametrize("limit", [EarlyStopping("train_loss", patience=9), SpikeDetection(), Timer("00:01:00:00")])
def test_callbacks_whose_limits_are_those_of_a_turn_are_free(limit):
    found = []
    for callbacks in ([], [limit]):
        torch.manual_seed(3)
        module = Plain()
        federate(module, 2, local=LocalTraining(callbacks=callbacks))
        found.append(weights(module))
    assert same_bits(*found)


@pytest.mark.parametrize("what", LASTING)
def test_they_act_within_a_turn_that_is_a_training_of_its_own(what):
    """One turn of one client is the same as plain training with the callback."""
    average = LASTING[what]
    torch.manual_seed(3)
    module = Plain().double()
    alone = copy.deepcopy(module)
    local = LocalTraining(max_epochs=4, precision="64-true", progress="round", callbacks=[average()])
    data = Blobs(23, shuffle=False, dtype=torch.float64)
    federate(module, 1, data=data, partitioner=Consecutive([23]), local=local, flags={"precision": "64-true"})
    trainer(4, average(), precision="64-true").fit(alone, InOrder(Blobs(23, dtype=torch.float64).train))
    assert max(float((one - weights(alone)[name]).abs().max()) for name, one in weights(module).items()) < 1e-15
