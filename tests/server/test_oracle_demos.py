"""The oracle over Lightning's demos and a GAN: one client with a loader of its own is plain training with that loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from federations import trainer, weights
from lightning.pytorch.demos.boring_classes import BoringModel, DemoModel, ManualOptimBoringModel, RandomDataset
from lightning.pytorch.demos.lstm import LightningLSTM, SequenceSampler, SimpleLSTM
from lightning.pytorch.demos.transformer import LightningTransformer, Transformer
from plain_training import TurnsSeed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining

ROUNDS, EPOCHS, WORDS = 2, 2, 17


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


def smaller(kind: type[L.LightningModule], network: Callable[[], nn.Module]) -> Callable[[], L.LightningModule]:
    """A demo whose network is smaller, and which downloads nothing."""

    def make() -> Any:
        module: Any = type(kind.__name__, (kind,), {"prepare_data": L.LightningModule.prepare_data})(vocab_size=2)
        module.model = network()
        return module

    return make


def numbers(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))


def boring() -> DataLoader[Any]:
    data = RandomDataset(32, 22)
    data.data = numbers(22, 32)
    return DataLoader(data, 5)


def words() -> TensorDataset:
    text = torch.randint(0, WORDS, (12, 6), generator=torch.Generator().manual_seed(1))
    return TensorDataset(text[:, :-1], text[:, 1:])


def sequences() -> DataLoader[Any]:
    return DataLoader(words(), batch_sampler=SequenceSampler(words(), 4))


DEMOS: dict[str, Any] = {
    "BoringModel": (BoringModel, boring),
    "ManualOptimBoringModel": (ManualOptimBoringModel, boring),
    "DemoModel": (
        DemoModel,
        lambda: DataLoader(TensorDataset(numbers(22, 32)), 5, collate_fn=lambda rows: torch.stack([r[0] for r in rows])),
    ),
    "LightningTransformer": (
        smaller(LightningTransformer, lambda: Transformer(WORDS, 8, 2, 8, 1)),
        lambda: DataLoader(words(), 5),
    ),
    "LightningLSTM, in batches of its sampler": (smaller(LightningLSTM, lambda: SimpleLSTM(WORDS, 8, 8, 2)), sequences),
    "GAN": (GAN, lambda: DataLoader(TensorDataset(numbers(20, 4)), 5)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEMOS)
def test_one_client_is_plain_training(name):
    make, loader = DEMOS[name]
    precision: dict[str, Any] = {"precision": "64-true"}
    found = []
    for federated in (False, True):
        torch.manual_seed(3)
        module, own = make(), loader()
        own.generator = torch.Generator()  # for the seeds of workers: torch's own moves on with each epoch
        before = weights(module)
        if federated:
            local = LocalTraining(max_epochs=EPOCHS, optimizer_state="kept", precision="64-true")
            federation = FederatedOrchestrator(local=local)
            trainer(ROUNDS, federation, **precision, limit_val_batches=0).fit(
                module, FederatedDataModule.from_clients({"a": own})
            )
        else:
            trainer(ROUNDS * EPOCHS, TurnsSeed(EPOCHS), **precision, limit_val_batches=0).fit(module, own)
        found.append(weights(module))
        assert any(not torch.equal(before[name], tensor.to(before[name])) for name, tensor in found[-1].items())
    assert max(float((found[0][name].double() - found[1][name].double()).abs().max()) for name in found[0]) < 1e-12
