"""What modules hide from a copy or a turn: such a federation is plain Lightning all the same, or says why not."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from against_hand import Updates
from engine_runs import ENGINES, ONE_ENOUGH, stepping, tier_1, variant
from federations import Blobs, Consecutive, Plain, federate, trainer, weights
from plain_training import client_by_client, distance_from_plain
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining


def own_autocast(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    """As many modules do; torch caches the cast weights until the outermost context ends."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = self(x)
    return F.cross_entropy(logits.float(), y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["32-true", pytest.param("bf16-mixed", marks=pytest.mark.slow)])
def test_a_module_with_its_own_autocast_trains_on_its_weights_of_now(engine, precision):
    assert distance_from_plain(stepping(own_autocast), engine, dtype=torch.float32, precision=precision) < 1e-6


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
    """Finds the weights of its start in ``setup``, and in its optimizer."""

    def setup(self, stage: str) -> None:
        self.anchor = self.net[0].weight.detach().clone()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + (self.net[0].weight - self.anchor).square().sum()

    def configure_optimizers(self) -> Any:
        return TowardsStart(self.parameters(), 0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_setup_and_optimizers_find_the_global_model(engine):
    assert client_by_client(Anchored, engine=engine) < 1e-12


class Child(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.parent().net[2].weight)


class Referring(Plain):
    """Refers to itself in a function, in defaults of functions, in a weak reference, and in hooks of parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = lambda x: self.net[0](x)
        self.steps = [lambda x, part=part: part(x) for part in self.net[1:2]]
        self.child = Child(self)
        self.features: dict[str, Tensor] = {}
        noted: dict[str, Tensor] = {}
        self.noted = noted
        self.net[0].register_forward_hook(lambda part, given, output: self.features.update(output=output))
        self.net[0].register_forward_hook(lambda part, given, output: noted.update(output=output))
        self.net[0].register_forward_pre_hook(lambda part, given: (given[0] + self.net[2].bias.sum(),))

    def forward(self, x: Tensor) -> Tensor:
        return self.child(self.steps[0](self.first(x)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss + self.features["output"].square().mean() + self.noted.pop("output").mean()


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


def without_biases(self: Any, *args: Any, **kwargs: Any) -> Any:
    return ((name, own) for name, own in Plain.named_parameters(self, *args, **kwargs) if "bias" not in name)


UNLISTED = {"listed": ListsSomeParameters, "named": variant(named_parameters=without_biases)}


@pytest.mark.parametrize("engine", ONE_ENOUGH)
@pytest.mark.parametrize("make", [Referring, Masked, *UNLISTED.values()])
def test_what_a_module_refers_to_or_does_not_list_is_that_of_the_clients_copy(make, engine):
    assert distance_from_plain(make, engine) < 1e-12


@pytest.mark.parametrize("make", UNLISTED.values())
def test_parameters_that_a_module_does_not_list_are_stacked(make):
    assert distance_from_plain(make, "stacked", optimizer_state="fresh") < 1e-6


epochs: list[int] = []


class ByEpoch(Sampler[int]):
    """Shuffles by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(23, generator=torch.Generator().manual_seed(self.epoch)).tolist())


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "by epoch": lambda: {"batch_size": 5, "sampler": ByEpoch()},
    "batches by epoch": lambda: {"batch_sampler": BatchSampler(ByEpoch(), 5, False)},
    "batches in order": lambda: {"batch_sampler": BatchSampler(SequentialSampler(range(23)), 4, True)},
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", tier_1(SAMPLERS, "by epoch", "batches in order"))
def test_samplers_of_a_client_are_those_of_plain_training(name, engine):
    """Three rounds of two epochs of one client with a loader of its own."""
    ends, examples = [], TensorDataset(*Blobs(23).train)
    for federated in (False, True):
        torch.manual_seed(3)
        module, loader = Plain(), DataLoader(examples, **SAMPLERS[name]())
        if federated:
            local = LocalTraining(max_epochs=2, engine=engine, optimizer_state="kept")
            data = FederatedDataModule.from_clients({"a": loader}, val=examples)
            trainer(3, FederatedOrchestrator(local=local)).fit(module, data)
        else:
            trainer(6).fit(module, loader)
        ends.append(weights(module))
    assert max(float((one - ends[1][name]).abs().max()) for name, one in ends[0].items()) < 1e-6


class Undecided(Plain):
    """Sets ``should_stop`` after every epoch and step, as a condition that is written as one line does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trainer.should_stop = False

    def on_train_epoch_end(self) -> None:
        epochs.append(self.current_epoch)
        assert len(epochs) < 20, "the turn does not end"
        self.trainer.should_stop = self.current_epoch == 100


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("more", "steps"), [({"max_epochs": 2}, 16), ({"max_epochs": 4, "max_steps": 13}, 13)])
def test_a_turn_ends_although_the_module_says_that_it_goes_on(more, steps, engine):
    epochs.clear()
    updates = Updates()
    federate(Undecided(), 3, updates, partitioner=Consecutive([40]), local=LocalTraining(engine=engine, **more))
    assert [update.num_steps for of_round in updates.rounds for update in of_round] == 3 * [steps]
