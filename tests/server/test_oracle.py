"""A federation of one client is plain Lightning training over all epochs of all rounds."""

from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from engine_runs import optimized, scheduled, variant
from federations import Blobs, Consecutive, Plain, federate, weights
from lightning.pytorch import Callback
from plain_training import distance_from_plain
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as schedules

from fl_lightning import LocalTraining

ENGINES = ("trainer", "fabric", "stacked")
SEQUENTIAL = ("trainer", "fabric")


Normalised = partial(Plain, batchnorm=True)


class Dropping(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3))


class Recurrent(Plain):
    """An LSTM computes with a list of its own parameters; the inputs' four numbers are its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.net = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 3)
        self.biases = {"last": self.net.bias}

    def forward(self, x: Any) -> Any:
        return F.linear(self.lstm(x.unsqueeze(2))[0][:, -1], self.net.weight, self.biases["last"])


class GAN(L.LightningModule):
    """As Lightning's tutorial on GANs: manual optimization with two optimizers, and a fixed noise for its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        # A bias before BatchNorm has no gradient but rounding errors, which Adam would scale up.
        self.generator = nn.Sequential(
            nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 4), nn.Tanh()
        )
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))
        self.validation_z = torch.randn(2, 3)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0]
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(real), 3).type_as(real)
        self.toggle_optimizer(optimizer_g)
        self.generated = self.generator(z)
        g_loss = F.softplus(-self.discriminator(self.generated)).mean()
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        fake = self.discriminator(self.generator(z).detach())
        d_loss = (F.softplus(-self.discriminator(real)).mean() + F.softplus(fake).mean()) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(part.parameters(), lr=0.01, betas=(0.5, 0.999)) for part in (self.generator, self.discriminator)
        ], []


def over_all_epochs(self: Any) -> Any:
    optimizer = Adam(self.parameters(), lr=0.1)
    return [optimizer], [schedules.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)]


def annealed(self: Any, batch: Any, batch_idx: int) -> Any:
    """As scvi weighs its KL term: by the epoch and the step of the whole training."""
    weight = self.current_epoch / self.trainer.max_epochs + 0.01 * self.global_step
    return F.cross_entropy(self(batch[0]), batch[1]) * (1 + weight)


def warm_up(optimizer: Any) -> Any:
    first, then = schedules.LinearLR(optimizer, 0.1, total_iters=7), schedules.ExponentialLR(optimizer, 0.95)
    return schedules.SequentialLR(optimizer, [first, then], milestones=[7])


def load_pretrained(self: Any) -> None:
    """As people do in ``on_fit_start`` or ``on_train_start``, which every client's turn calls."""
    values = {
        name: torch.linspace(0.1, 0.5, tensor.numel()).reshape(tensor.shape) for name, tensor in weights(self.net).items()
    }
    self.net.load_state_dict({name: -value if "bias" in name else value for name, value in values.items()})


def load_in_data(callback: Any, trainer: Any, pl_module: Any) -> None:
    """Write past autograd's counters of changes."""
    for parameter in pl_module.net.parameters():
        parameter.data.copy_(torch.linspace(0.1, 0.5, parameter.numel()).reshape(parameter.shape))


def plateau(self: Any) -> Any:
    optimizer = SGD(self.parameters(), lr=0.5)
    schedule = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train_loss_epoch"}}


def one_cycle(self: Any) -> Any:
    """It cycles the momentum, too."""
    optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
    schedule = schedules.OneCycleLR(optimizer, max_lr=0.5, total_steps=int(self.trainer.estimated_stepping_batches))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


MODULES: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "SGD": (Plain, ENGINES, {}),
    "momentum": (optimized(lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True)), SEQUENTIAL, {}),
    "Adam": (optimized(lambda p: Adam(p, lr=0.05, amsgrad=True)), SEQUENTIAL, {}),
    "BatchNorm": (Normalised, ENGINES, {}),
    "dropout": (Dropping, SEQUENTIAL, {}),
    "LSTM": (Recurrent, SEQUENTIAL, {}),
    "GAN": (GAN, ("trainer",), {}),
    "clipping": (Plain, ENGINES, {"gradient_clip_val": 0.3}),
    "accumulation": (Plain, ENGINES, {"accumulate_grad_batches": 3}),
    "few batches": (Plain, ENGINES, {"limit_train_batches": 3}),
    "OneCycle": (variant(configure_optimizers=one_cycle), SEQUENTIAL, {"accumulate_grad_batches": 2}),
    "cosine over all epochs": (variant(configure_optimizers=over_all_epochs), SEQUENTIAL, {}),
    "warm-up": (scheduled(warm_up, interval="step"), ENGINES, {}),
    "every second epoch": (scheduled(lambda o: schedules.ExponentialLR(o, 0.5), frequency=2), ENGINES, {"max_epochs": 3}),
    "restarts": (scheduled(lambda o: schedules.CosineAnnealingWarmRestarts(o, 3), interval="step", frequency=2), ENGINES, {}),
    "plateau": (variant(configure_optimizers=plateau), SEQUENTIAL, {}),
    "pretrained in on_fit_start": (variant(on_fit_start=load_pretrained), SEQUENTIAL, {}),
    "pretrained in on_train_start": (variant(on_train_start=load_pretrained), SEQUENTIAL, {}),
    "pretrained BatchNorm": (partial(variant(on_fit_start=load_pretrained), batchnorm=True), SEQUENTIAL, {}),
    "annealed by epoch and step": (variant(training_step=annealed), ENGINES, {}),
}
CASES = [(name, engine) for name, (_, engines, _) in MODULES.items() for engine in engines]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), CASES)
def test_one_client_is_plain_training(name, engine):
    make, _, local = MODULES[name]
    kept = {} if engine in SEQUENTIAL else {"optimizer_state": "fresh"}  # plain SGD has no state
    epochs = local.get("max_epochs", 2)
    assert distance_from_plain(make, engine, epochs=epochs, **{**local, **kept}) < 1e-12


@pytest.mark.parametrize(("name", "more"), [("BatchNorm", {}), ("momentum", {"precision": "bf16-mixed", "engine": "fabric"})])
def test_one_client_in_other_precisions(name, more):
    make, _, _ = MODULES[name]
    assert distance_from_plain(make, dtype=torch.float32, **more) < 1e-6


@pytest.mark.parametrize("engine", SEQUENTIAL)
def test_a_callback_that_loads_weights_counts_once(engine):
    """Also for a client that is drawn for the first time in a later round."""
    distances = []
    for rounds in (1, 6):
        module = Plain(lr=0.01)
        local = LocalTraining(engine=engine, callbacks=[type("Loads", (Callback,), {"on_train_start": load_in_data})()])
        federate(module, rounds, data=Blobs(shuffle=False), partitioner=Consecutive(), local=local, clients_per_round=1)
        start = torch.cat([torch.linspace(0.1, 0.5, parameter.numel()) for parameter in module.net.parameters()])
        distances.append(float((torch.cat([p.detach().reshape(-1) for p in module.net.parameters()]) - start).norm()))
    assert distances[1] > 3 * distances[0]
