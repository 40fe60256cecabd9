"""What modules hide from a copy, a turn or a round: such a federation is plain Lightning all the same, or says why not."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from against_hand import Updates
from federations import SIZES, Blobs, Consecutive, Plain, federate, trainer, weights
from plain_training import InOrder, distance_from_plain
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback, LocalTraining, PartialWork
from fl_lightning.clients.client_copy import client_copy

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


HIDING = [WithLambda, WithDefault, WithHook, WithWeakReference, Masked]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", HIDING)
def test_what_refers_to_the_module_refers_to_the_clients_copy(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


def test_functions_that_do_not_refer_to_the_module_are_shared():
    class Shares(Plain):
        def __init__(self) -> None:
            super().__init__()
            lock = threading.Lock()  # cannot be copied
            self.locked = lambda: lock
            self.helper = F.relu

    module = Shares()
    client = client_copy(module)
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
    trainer(1, FederatedOrchestrator()).fit(
        module, FederatedDataModule.from_loaders(loader, loader, partitioner=Consecutive([10, 13]))
    )
