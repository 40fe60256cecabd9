"""Tensors that training creates, resizes or hides: right, or refused by name, and never passed from client to client."""

from typing import Any

import pytest
import torch
from engine_runs import ENGINES, built, fitted, stepping, variant
from federations import Consecutive, Plain
from plain_training import distance_from_plain
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import LocalTraining
from fl_lightning.errors import ConfigurationError

SEEN: list[Any] = []


def fit(make: Any, engine: Any = "trainer", **more: Any) -> Any:
    return fitted(make, local=LocalTraining(engine=engine), **more)


def late_buffer(self: Any, x: Tensor) -> Tensor:
    self.late = torch.zeros(4) if self.late is None else self.late
    self.late.mul_(0.9).add_(0.1 * x.mean(0))
    return x - self.late


def late_layer(self: Any, x: Tensor) -> Tensor:
    if not len(self.norms):
        self.norms.append(nn.BatchNorm1d(4, affine=False))
    return self.norms[0](x)


@pytest.mark.parametrize(
    ("use", "base"),
    [
        (late_buffer, built(lambda self: self.register_buffer("late", None))),
        (late_layer, built(lambda self: setattr(self, "norms", nn.ModuleList()))),
    ],
)
def test_a_buffer_that_training_creates_is_gone_after_the_turn(use, base):
    found = []

    def look(self: Any) -> None:
        found.append(getattr(self, "late", None) is not None or len(getattr(self, "norms", [])) > 0)

    step = lambda self, batch, batch_idx: Plain.training_step(self, (use(self, batch[0]), batch[1]), batch_idx)  # noqa: E731
    make = variant(base, training_step=step, on_train_start=look)
    with pytest.warns(UserWarning, match=r"Training created the buffer '.*' of Variant.*register it with its shape"):
        module = fit(make, partitioner=Consecutive([10, 15, 15]))
    assert found == [False] * 6
    assert not [name for name, _ in module.named_buffers() if "late" in name or "norms" in name]


class Resizing(Plain):
    """Keeps what it has seen in a buffer that grows."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=persistent)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        SEEN.append(len(self.seen))
        self.seen = torch.cat([self.seen, torch.ones(1)])
        return super().training_step(batch, batch_idx)


def test_a_buffer_that_training_resizes_cannot_be_averaged():
    message = r"Training changed the shape of the buffer 'seen' of Resizing from \(1,\) to \(3,\), so it cannot be averaged"
    with pytest.raises(ConfigurationError, match=message):
        fit(Resizing, partitioner=Consecutive([10]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_buffer_that_is_not_persistent_has_the_servers_shape_in_each_turn(engine):
    SEEN.clear()
    with pytest.warns(UserWarning, match="Training changed the buffer 'seen' of Resizing, which is not sent back"):
        fit(lambda: Resizing(persistent=False), engine=engine, partitioner=Consecutive([10, 10]))
    assert SEEN == [1, 2] * 4


def test_a_client_keeps_a_buffer_that_grows():
    SEEN.clear()
    fit(variant(Resizing, client_state=("seen",)), partitioner=Consecutive([10, 10]))
    assert SEEN == [1, 2, 1, 2, 3, 4, 3, 4]


def temperature(kept: Any) -> Any:
    """A module that trains a tensor in an attribute, as soft actor-critics do; ``kept`` makes the attribute."""
    tensor = lambda self: self.alphas[0] if isinstance(self.alphas, list) else self.alphas  # noqa: E731
    return built(
        lambda self: setattr(self, "alphas", kept()),
        client_state=("alphas",),
        training_step=lambda self, batch, _: F.cross_entropy(self(batch[0]) * tensor(self).exp(), batch[1]),
        configure_optimizers=lambda self: torch.optim.SGD([*self.parameters(), tensor(self)], lr=0.1),
    )


UNSEEN = [
    variant(
        configure_optimizers=lambda self: torch.optim.SGD([*self.parameters(), torch.zeros(2, requires_grad=True)], lr=0.1)
    ),  # no loss depends on it
    temperature(lambda: torch.zeros(1, dtype=torch.float64, requires_grad=True)),
    temperature(lambda: [nn.Parameter(torch.zeros(1, dtype=torch.float64))]),
]


@pytest.mark.parametrize("make", UNSEEN)
def test_a_tensor_that_a_client_keeps_goes_on_training(make):
    """Plain training of six epochs, in three turns."""
    assert distance_from_plain(make) < 1e-15


class Quantized(Plain):
    """A frozen layer of bytes."""

    moves = False

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.table = nn.Parameter(torch.randint(-5, 5, (4, 4), dtype=torch.int8, generator=generator), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + x @ self.table.to(x.dtype) * 0.01)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.moves:
            self.table.data += 1
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_parameters_of_bytes_stay(engine):
    assert distance_from_plain(Quantized, engine, rounds=1) < 1e-15


def test_frozen_bytes_that_training_changes_are_refused():
    message = r"Training changed the frozen parameter 'table' of Variant, which cannot be averaged, since it is torch.int8"
    with pytest.raises(ConfigurationError, match=message):
        fit(variant(Quantized, moves=True))


def test_the_reason_why_a_buffer_is_not_sent_back_may_be_that_it_is_complex():
    def changes(self: Any, batch: Any, batch_idx: int) -> None:
        self.spectrum += torch.fft.rfft(batch[0].mean(0))

    registers = lambda self: self.register_buffer("spectrum", torch.zeros(3, dtype=torch.complex64))  # noqa: E731
    with pytest.warns(UserWarning, match=r"the buffer 'spectrum' of Variant.*\(not persistent, or complex\)"):
        fit(built(registers, on_train_batch_start=changes))


class Masks(Plain):
    """The same mask in two parts, and one that the network reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Module(), nn.Module()
        mask = torch.full((3,), -torch.inf)
        self.one.register_buffer("mask", mask)
        self.other.register_buffer("mask", mask)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + self.mask.clamp(min=-5)


def test_masks_of_infinite_values_stay_constants():
    module = fit(Masks)
    assert module.other.mask.tolist() == 3 * [-torch.inf]
    assert module.mask.tolist() == [0.0, -torch.inf, 0.0]


class SizedByItsInputs(Plain):
    """Its first forward pass, that of Lightning's sanity check, gives a buffer its size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.seen) != x.shape[1]:
            self.seen = torch.zeros(x.shape[1])
        self.seen = self.seen * 0.5 + x.detach().mean(0) * 0.5
        return self.net(x - self.seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_follow_a_buffer_that_the_server_has_resized(engine):
    module = fit(SizedByItsInputs, engine=engine, flags={"num_sanity_val_steps": 2})
    assert module.seen.shape == (4,)


@pytest.mark.filterwarnings("ignore:.*this fit will run with no optimizer")
@pytest.mark.filterwarnings("ignore:.*training_step.*returned.*None")
def test_a_module_without_an_optimizer_has_none_to_keep():
    """It only fits a running mean."""

    def only_fits(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        self(x)

    make = variant(stepping(only_fits), configure_optimizers=lambda self: None)
    assert distance_from_plain(lambda: make(batchnorm=True)) < 1e-15
