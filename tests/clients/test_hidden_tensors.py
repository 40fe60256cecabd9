"""Tensors that training creates, resizes or hides: right, or refused by name, and never passed from client to client."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from plain_training import InOrder, distance_from_plain
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fl_lightning import LocalTraining
from fl_lightning.errors import ConfigurationError

ENGINES = ["trainer", "fabric"]
SEEN: list[Any] = []


def fit(make: Any, rounds: int = 2, engine: str = "trainer", **more: Any) -> Any:
    torch.manual_seed(3)
    module = make()
    federate(module, rounds, local=LocalTraining(engine=engine, **more.pop("local", {})), **more)
    return module


# ---------------------------------------------------------------- buffers that training creates


class LateBuffer(Plain):
    """Registers a running mean in its first step."""

    def on_train_start(self) -> None:
        SEEN.append(hasattr(self, "late"))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(4))
        self.late.mul_(0.9).add_(0.1 * batch[0].mean(0))
        return super().training_step((batch[0] - self.late, batch[1]), batch_idx)


class EmptyBuffer(Plain):
    """Registers a place for it, which the first step fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", None)

    def on_train_start(self) -> None:
        SEEN.append(self.late is not None)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.late is None:
            self.late = torch.zeros(4)
        self.late.add_(0.1 * batch[0].mean(0))
        return super().training_step((batch[0] - self.late, batch[1]), batch_idx)


class LateLayer(Plain):
    """Adds a layer that has buffers only."""

    def on_train_start(self) -> None:
        SEEN.append(hasattr(self, "late"))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.BatchNorm1d(4, affine=False)
        return super().training_step((self.late(batch[0]), batch[1]), batch_idx)


class LateInList(Plain):
    """Adds one to a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList()

    def on_train_start(self) -> None:
        SEEN.append(len(self.norms) > 0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not len(self.norms):
            self.norms.append(nn.BatchNorm1d(4, affine=False))
        return super().training_step((self.norms[0](batch[0]), batch[1]), batch_idx)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [LateBuffer, EmptyBuffer, LateLayer, LateInList])
def test_a_buffer_that_training_creates_is_gone_after_the_turn(make, engine):
    SEEN.clear()
    with pytest.warns(UserWarning, match=r"Training created the buffer '.*' of Late|Empty.*register it with its shape"):
        module = fit(make, engine=engine, partitioner=Consecutive([10, 15, 15]))
    assert SEEN == [False] * 6
    assert not [name for name, _ in module.named_buffers() if "late" in name or "norms" in name]


# ---------------------------------------------------------------- buffers that change their shape


class Resizing(Plain):
    """Keeps what it has seen in a buffer that grows."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=persistent)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        SEEN.append(len(self.seen))
        self.seen = torch.cat([self.seen, torch.ones(1)])
        return super().training_step(batch, batch_idx)


class Growing(Resizing):
    client_state = ("seen",)


def test_a_buffer_that_training_resizes_cannot_be_averaged():
    message = r"Training changed the shape of the buffer 'seen' of Resizing from \(1,\) to \(3,\), so it cannot be averaged"
    with pytest.raises(ConfigurationError, match=message):
        fit(Resizing, partitioner=Consecutive([10]), local={"max_epochs": 1})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_buffer_that_is_not_persistent_has_the_servers_shape_in_each_turn(engine):
    SEEN.clear()
    with pytest.warns(UserWarning, match="Training changed the buffer 'seen' of Resizing, which is not sent back"):
        fit(lambda: Resizing(persistent=False), engine=engine, partitioner=Consecutive([10, 10]), local={"max_epochs": 1})
    assert SEEN == [1, 2] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_keeps_a_buffer_that_grows(engine):
    SEEN.clear()
    fit(Growing, engine=engine, partitioner=Consecutive([10, 10]), local={"max_epochs": 1})
    assert SEEN == [1, 2, 1, 2, 3, 4, 3, 4]


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


# ---------------------------------------------------------------- tensors that the module does not contain


class HiddenLayers(Plain):
    """Keeps layers in a list, which torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = [nn.Linear(3, 3)]

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](self.net(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), *self.heads[0].parameters()], lr=0.1)


class Bystander(Plain):
    """Its optimizer has a tensor that no loss depends on."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), torch.zeros(2, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_that_only_the_optimizer_knows_are_refused(engine):
    message = r"optimizers of HiddenLayers train 2 tensors that it does not contain, the first of shape \(3, 3\), so no client"
    with pytest.raises(ConfigurationError, match=message):
        fit(HiddenLayers, engine=engine)


def test_a_tensor_that_does_not_train_is_of_no_importance():
    assert distance_from_plain(Bystander) < 1e-15


class Temperature(Plain):
    """Trains a tensor in an attribute, as soft actor-critics do."""

    client_state = ("log_alpha",)

    def __init__(self) -> None:
        super().__init__()
        self.log_alpha = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]) * self.log_alpha.exp(), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), self.log_alpha], lr=0.1)


class InList(Temperature):
    """The same in a list of parameters."""

    client_state = ("alphas",)

    def __init__(self) -> None:
        super().__init__()
        del self.log_alpha
        self.alphas = [nn.Parameter(torch.zeros(1, dtype=torch.float64))]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]) * self.alphas[0].exp(), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), *self.alphas], lr=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [Temperature, InList])
def test_a_tensor_that_a_client_keeps_goes_on_training(make, engine):
    """Plain training of six epochs, in three turns."""
    assert distance_from_plain(make, engine) < 1e-15


class Misnamed(Plain):
    client_state = ("queu",)


def test_a_name_that_the_module_lacks_is_refused():
    message = "'client_state' of Misnamed names 'queu', but after a client's training the part has no attribute or buffer"
    with pytest.raises(ConfigurationError, match=message):
        fit(Misnamed)


# ---------------------------------------------------------------- parts that compute their tensors or states


class OldWeightNorm(Plain):
    """torch's older weight norm keeps the computed weight in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.net[0] = nn.utils.weight_norm(self.net[0])


def whole_and_resumed(make: Any, folder: Any) -> tuple[Any, Any]:
    """The modules of four rounds at once, and of four rounds with a resume after two."""
    torch.manual_seed(3)
    federate(make(), 2, every_round(folder), local=LocalTraining(), flags={"enable_checkpointing": True})
    return fit(make, 4), fit(make, 4, ckpt_path=str(folder / "last.ckpt"))


def test_a_layer_with_the_older_weight_norm_resumes(tmp_path):
    whole, resumed = whole_and_resumed(OldWeightNorm, tmp_path)
    assert same_bits(weights(whole), weights(resumed))


class Collected(Plain):
    """Metrics with common states, which torchmetrics groups in their first update."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.collected.update(self(batch[0]), batch[1])
        self.log_dict(self.collected, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_of_metrics_are_no_state_of_a_client(engine):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training changed")
        collected = fit(Collected, engine=engine)
    assert same_bits(weights(collected.net), weights(fit(Plain, engine=engine).net))


class NothingToTrain(Plain):
    """Only fits a running mean."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])

    def configure_optimizers(self) -> None:
        return None


@pytest.mark.filterwarnings("ignore:.*this fit will run with no optimizer")
@pytest.mark.filterwarnings("ignore:.*training_step.*returned.*None")
def test_a_module_without_an_optimizer_has_none_to_keep():
    assert distance_from_plain(NothingToTrain) < 1e-15


# ---------------------------------------------------------------- frozen tensors that are not real numbers


class Quantized(Plain):
    """A frozen layer of bytes."""

    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.table = nn.Parameter(torch.randint(-5, 5, (4, 4), dtype=torch.int8, generator=generator), requires_grad=False)
        self.moves = moves

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + x @ self.table.to(x.dtype) * 0.01)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.moves:
            self.table.data += 1
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_parameters_of_bytes_stay(engine):
    torch.manual_seed(3)
    module, alone = Quantized().double(), Quantized().double()
    table = module.table.clone()
    alone.load_state_dict(module.state_dict())
    local = LocalTraining(max_epochs=1, precision="64-true", engine=engine)
    data = Blobs(23, shuffle=False, dtype=torch.float64)
    federate(module, 1, data=data, partitioner=Consecutive([23]), local=local, flags={"precision": "64-true"})
    trainer(1, precision="64-true").fit(alone, InOrder(Blobs(23, dtype=torch.float64).train))
    assert torch.equal(module.table, table)
    assert max(float((one - weights(alone)[name]).abs().max()) for name, one in weights(module).items()) < 1e-15


def test_frozen_bytes_that_training_changes_are_refused():
    message = r"Training changed the frozen parameter 'table' of Quantized, which cannot be averaged, since it is torch.int8"
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: Quantized(moves=True))


class Spectrum(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spectrum", torch.zeros(3, dtype=torch.complex64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.spectrum += torch.fft.rfft(batch[0].mean(0))
        return super().training_step(batch, batch_idx)


def test_the_reason_why_a_buffer_is_not_sent_back_may_be_that_it_is_complex():
    with pytest.warns(UserWarning, match=r"the buffer 'spectrum' of Spectrum.*\(not persistent, or complex\)"):
        fit(Spectrum)


class Range(Plain):
    """Finds the range of its inputs, as observers of quantization do, from infinite values on, in validation as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        self.low = torch.minimum(self.low, x.detach().min())
        return self.net(x - self.low)


def test_a_buffer_that_began_without_a_finite_value_is_of_the_same_kind_after_a_resume(tmp_path):
    whole, resumed = whole_and_resumed(Range, tmp_path)
    assert whole.low.isfinite()
    assert same_bits(weights(whole), weights(resumed))


class TwoNames(Plain):
    """The same mask in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Module(), nn.Module()
        mask = torch.full((3,), -torch.inf)
        self.one.register_buffer("mask", mask)
        self.other.register_buffer("mask", mask)


def test_a_mask_of_two_names_is_a_constant():
    assert fit(TwoNames).other.mask.tolist() == 3 * [-torch.inf]


class LateNorm(Plain):
    """Buffers without values, in a layer that has not seen a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LazyBatchNorm1d(affine=False)


def test_a_lazy_layer_of_buffers_is_no_traceback():
    with pytest.raises((ConfigurationError, ValueError), match=r"(?i)lazy|initiali"):
        fit(LateNorm)


# ---------------------------------------------------------------- collectives of the module


class Gathering(Plain):
    """Looks for other processes in training, as contrastive losses do."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        SEEN.append(torch.distributed.is_initialized())
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_trains_without_a_process_group(engine, tmp_path):
    SEEN.clear()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        fit(Gathering, 1, engine)
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()
    assert set(SEEN) == {False}
