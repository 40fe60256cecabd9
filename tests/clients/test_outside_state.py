"""State that a module's code keeps outside its attributes: in classes, closures, default arguments and globals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_runs import variant
from federations import Blobs, Consecutive, Plain, federate, trainer
from plain_training import InOrder
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalOnly, LocalTraining
from fl_lightning.clients.isolation.outside_state import OutsideState

LOG: list[int] = []
TOTAL = 0
SIZES = (7, 13)


def scaled(factor: Any, base: type[Plain] = Plain, **more: Any) -> Any:
    """A module that scales its loss by what ``factor(module, inputs)`` remembers."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        return Plain.training_step(self, batch, batch_idx) * (1 + factor(self, batch[0]) / 5)

    return variant(base, training_step=training_step, **more)


def holding(make: Any) -> Any:
    """A module that holds a function and scales its loss by it."""

    def build(self: Any) -> None:
        Plain.__init__(self)
        self.factor = make()

    return scaled(lambda self, x: self.factor(x), __init__=build)


def added(values: list[int]) -> int:
    values.append(1)
    return len(values)


def list_of_the_class() -> Any:
    return scaled(lambda self, x: added(self.seen), seen=[])


def count_of_the_class() -> Any:
    def factor(self: Any, x: Tensor) -> float:
        type(self).count += 1
        return self.count

    return scaled(factor, count=0)


def dictionary_of_a_base() -> Any:
    def factor(self: Any, x: Tensor) -> float:
        self.means["of"][0].add_(x.mean(0))
        return float(self.means["of"][0].abs().sum())

    return scaled(factor, variant(means={"of": [torch.zeros(4)]}))


def created_in_the_class() -> Any:
    def factor(self: Any, x: Tensor) -> float:
        if not hasattr(type(self), "late"):
            type(self).late = []
        return added(type(self).late)

    return scaled(factor)


def class_of_an_attribute() -> Any:
    return holding(type("Loss", (), {"history": [], "__call__": lambda self, x: added(self.history)}))


def class_of_a_part() -> Any:
    class Part(torch.nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Part.calls += self.training
            return super().forward(x)

    class Net(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net[2] = Part(8, 3)

    return scaled(lambda self, x: Part.calls, Net)


def counter(step: int, values: list[int] | None = None) -> Any:
    count = 0

    def advance(x: Any) -> float:
        nonlocal count
        count += step
        return count + (0 if values is None else added(values))

    return advance


def closure() -> Any:
    return holding(lambda: counter(1, []))


def two_closures() -> Any:
    """Each counts for itself, although one function made both."""

    def make() -> Any:
        slow, fast = counter(1), counter(10)
        return lambda x: slow(x) - fast(x) / 20

    return holding(make)


def default() -> Any:
    def factor(self: Any, x: Any, seen: Any = [], *, more: Any = {}) -> float:  # noqa: B006
        more[len(more)] = 1
        return added(seen) + len(more)

    return scaled(lambda self, x: self.of_defaults(x), of_defaults=factor)


NUMBERS = [count_of_the_class, class_of_a_part, two_closures]
LISTS = [list_of_the_class, dictionary_of_a_base, created_in_the_class, class_of_an_attribute, closure, default]


def alone(net: Any, examples: Any, epochs: int) -> Tensor:
    """The weights of plain training on one client's examples."""
    torch.manual_seed(3)
    module = net().double()
    trainer(epochs, precision="64-true").fit(module, InOrder(examples))
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.mark.parametrize("make", [*NUMBERS, *LISTS], ids=lambda make: make.__name__)
def test_clients_do_not_see_each_others(make, recwarn):
    """Oracle: plain training of each client alone; numbers continue over rounds, and the rest begins anew."""
    rounds = 2 if make in NUMBERS else 1
    torch.manual_seed(3)
    module, source = make()().double(), Blobs(sum(SIZES), shuffle=False, dtype=torch.float64)
    federation = FederatedOrchestrator(route=LocalOnly("val_acc"), local=LocalTraining())
    trainer(rounds, federation, precision="64-true").fit(module, FederatedDataModule(source, Consecutive(SIZES)))
    parts = zip(*(tensor.split(SIZES) for tensor in source.train), strict=True)
    for client, examples in enumerate(parts):
        own = federation._run.memory.last_model(client).vector
        torch.testing.assert_close(own, alone(make(), examples, rounds), rtol=0, atol=1e-12)
    told = [str(one.message) for one in recwarn if "outside its own attributes" in str(one.message)]
    assert len(told) == (make not in NUMBERS)


def test_the_server_keeps_its_own():
    """What hooks of the federation itself collect or create is still there after the clients' turns."""

    class Net(Plain):
        rounds: Any = []
        steps = 0

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            Net.steps += 1
            self.rounds.append("turn")
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            self.rounds.append(self.steps)
            if not hasattr(Net, "created"):
                Net.created = []
            Net.created.append(self.current_epoch)

    federate(Net(), 2, local=LocalTraining())
    assert (Net.rounds, Net.steps, Net.created) == ([0, 0], 0, [0, 1])


def note() -> None:
    global TOTAL
    TOTAL += 1
    LOG.append(TOTAL)


def test_a_global_that_training_changes_is_named():
    seen: Any = []
    calls_a_function = variant(on_train_batch_start=lambda self, *_: note())
    encloses = variant(on_train_batch_start=lambda self, *_: seen.append(1))
    count = counter(1)
    calls_another = variant(on_train_batch_start=lambda self, *_: count(None))
    with pytest.warns(UserWarning, match=r"Training changed 'test_outside_state.LOG', 'test_outside_state.TOTAL', which all"):
        federate(calls_a_function(), 1, local=LocalTraining())
    assert (len(LOG), TOTAL) == (9, 9)  # a log is left alone
    with pytest.warns(UserWarning, match=r"Training changed '.*seen', which all clients of a process"):
        federate(encloses(), 1, local=LocalTraining())
    assert len(seen) == 9
    with pytest.warns(UserWarning, match=r"Training changed 'counter.<locals>.advance.count', which all clients of a process"):
        federate(calls_another(), 1, local=LocalTraining())


def test_a_turn_that_fails_leaves_nothing_behind():
    net = list_of_the_class()
    module = net()
    state, before = OutsideState(module), net.seen
    state.begin({})
    net.seen.append(1)
    state.begin({})  # of the next client, without an end
    assert net.seen == []
    state.end()
    assert net.seen is before
    assert before == []


def test_what_two_functions_share_is_given_back():
    """Both close over one variable, so it is found twice."""
    count = 0

    def advance() -> None:
        nonlocal count
        count += 1

    module = Plain()
    module.advance, module.read = advance, lambda: count
    state = OutsideState(module)
    module.advance()  # by the server's own hooks
    state.begin({})
    assert module.read() == 0
    module.advance()
    module.advance()
    kept = state.end()
    assert count == 1
    state.begin(kept)
    assert module.read() == 2
    state.end()
    assert count == 1


def test_nothing_is_said_of_constants(recwarn):
    class Net(Plain):
        sizes: Any = {"hidden": [8, 3]}
        rate = 0.1

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1]) * (self.rate * self.sizes["hidden"][0])

    federate(Net(), 2, local=LocalTraining())
    assert not [one for one in recwarn if "Training changed" in str(one.message)]
