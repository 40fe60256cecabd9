"""State that a module's code keeps outside its attributes: in classes, closures, default arguments and globals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import SIZES, Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from plain_training import InOrder
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalOnly, LocalTraining
from fl_lightning.clients.isolation.outside_state import OutsideState

LOG: list[int] = []
TOTAL = 0


class Scaled(Plain):
    """Scales its loss by what it remembers."""

    def factor(self, batch: Any) -> float:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + self.factor(batch) / 5)


def list_of_the_class() -> type[Scaled]:
    class Net(Scaled):
        seen: Any = []

        def factor(self, batch: Any) -> float:
            self.seen.append(len(batch[1]))
            return len(self.seen)

    return Net


def count_of_the_class() -> type[Scaled]:
    class Net(Scaled):
        count = 0

        def factor(self, batch: Any) -> float:
            Net.count += 1
            return self.count

    return Net


def dictionary_of_a_base() -> type[Scaled]:
    class Base(Scaled):
        means: Any = {"of": [torch.zeros(4)]}

        def factor(self, batch: Any) -> float:
            self.means["of"][0].add_(batch[0].mean(0))
            return float(self.means["of"][0].abs().sum())

    return type("Net", (Base,), {})


def created_in_the_class() -> type[Scaled]:
    class Net(Scaled):
        def factor(self, batch: Any) -> float:
            if not hasattr(Net, "late"):
                Net.late = []
            Net.late.append(1)
            return len(Net.late)

    return Net


def class_of_the_loss() -> type[Scaled]:
    class Loss:
        history: Any = []

        def __call__(self, batch: Any) -> float:
            self.history.append(1)
            return len(self.history)

    class Net(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.factor = Loss()

    return Net


def class_of_a_part() -> type[Scaled]:
    class Part(torch.nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Part.calls += self.training
            return super().forward(x)

    class Net(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.net[2] = Part(8, 3)

        def factor(self, batch: Any) -> float:
            return Part.calls

    return Net


def closure() -> type[Scaled]:
    def counter() -> Any:
        count, values = 0, []

        def step(batch: Any) -> float:
            nonlocal count
            count += 1
            values.append(count)
            return count + len(values)

        return step

    class Net(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.factor = counter()

    return Net


def two_closures() -> type[Scaled]:
    """Each counts for itself, although one function made both."""

    def counter(step: int) -> Any:
        count = 0

        def advance(batch: Any) -> float:
            nonlocal count
            count += step
            return count

        return advance

    class Net(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.slow, self.fast = counter(1), counter(10)

        def factor(self, batch: Any) -> float:
            return self.slow(batch) - self.fast(batch) / 20

    return Net


def default() -> type[Scaled]:
    class Net(Scaled):
        def factor(self, batch: Any, seen: Any = [], *, more: Any = {}) -> float:  # noqa: B006
            seen.append(1)
            more[len(more)] = 1
            return len(seen) + len(more)

    return Net


KINDS = [
    list_of_the_class,
    count_of_the_class,
    dictionary_of_a_base,
    created_in_the_class,
    class_of_the_loss,
    class_of_a_part,
    closure,
    two_closures,
    default,
]
NUMBERS = (count_of_the_class, class_of_a_part, two_closures)


def alone(net: type[Scaled], client: int, epochs: int) -> Tensor:
    """The weights of plain training on one client's examples."""
    torch.manual_seed(3)
    module = net().double()
    start = sum(SIZES[:client])
    part = slice(start, start + SIZES[client])
    run = trainer(epochs, precision="64-true")
    run.fit(module, InOrder(tuple(tensor[part] for tensor in Blobs(dtype=torch.float64).train)))
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_clients_do_not_see_each_others(make, engine, recwarn):
    """Oracle: plain training of each client alone; numbers continue over rounds, and the rest begins anew."""
    rounds = 2 if make in NUMBERS else 1
    torch.manual_seed(3)
    module = make()().double()
    federation = FederatedOrchestrator(route=LocalOnly("val_acc"), local=LocalTraining(engine=engine))
    run = trainer(rounds, federation, precision="64-true")
    run.fit(module, FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive()))
    for client in range(3):
        own = federation._run.memory.last_model(client).vector
        torch.testing.assert_close(own, alone(make(), client, rounds), rtol=0, atol=1e-12)
    told = [str(one.message) for one in recwarn if "outside its own attributes" in str(one.message)]
    assert len(told) == (make not in NUMBERS)


def test_the_server_keeps_its_own():
    """What hooks of the federation itself collect is still there after the clients' turns."""

    class Net(Plain):
        rounds: Any = []
        steps = 0

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            Net.steps += 1
            self.rounds.append("turn")
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            self.rounds.append(self.steps)

    federate(Net(), 2, local=LocalTraining(), flags={"num_sanity_val_steps": 0})
    assert (Net.rounds, Net.steps) == ([0, 0], 0)


def test_numbers_of_a_class_resume(tmp_path):
    def run(rounds: int, **settings: Any) -> dict[str, Tensor]:
        torch.manual_seed(3)
        module = count_of_the_class()()
        flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
        federate(module, rounds, every_round(tmp_path), flags=flags, clients_per_round=2, **settings)
        return weights(module)

    whole = run(4)
    run(2)
    assert same_bits(run(4, ckpt_path=str(tmp_path / "last.ckpt")), whole)


def test_a_global_that_training_changes_is_named():
    class Net(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            note()
            return super().training_step(batch, batch_idx)

    seen: Any = []

    class Enclosed(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            seen.append(1)
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match=r"Training changed 'test_outside_state.LOG', 'test_outside_state.TOTAL', which all"):
        federate(Net(), 1, local=LocalTraining())
    assert (len(LOG), TOTAL) == (9, 9)  # a log is left alone
    with pytest.warns(UserWarning, match=r"Training changed '.*Enclosed.training_step.seen', which all clients of a process"):
        federate(Enclosed(), 1, local=LocalTraining())
    assert len(seen) == 9


def note() -> None:
    global TOTAL
    TOTAL += 1
    LOG.append(TOTAL)


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


def test_what_the_federation_adds_to_a_class_stays():
    class Net(Plain):
        def on_validation_epoch_end(self) -> None:
            if not hasattr(Net, "rounds"):
                Net.rounds = []
            Net.rounds.append(self.current_epoch)

    federate(Net(), 2, local=LocalTraining(), flags={"num_sanity_val_steps": 0})
    assert Net.rounds == [0, 1]


def test_nothing_is_said_of_constants(recwarn):
    class Net(Plain):
        sizes: Any = {"hidden": [8, 3]}
        rate = 0.1

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1]) * (self.rate * self.sizes["hidden"][0])

    federate(Net(), 2, local=LocalTraining())
    assert not [one for one in recwarn if "Training changed" in str(one.message)]
