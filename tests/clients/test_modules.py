"""Modules that nobody here wrote, federated without a change to them."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torchvision
from federations import Blobs, federate, weights
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, ManualOptimBoringModel
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import AdaFed, IIDPartitioner, LocalTraining


class BoringData(BoringDataModule):
    def __init__(self) -> None:
        super().__init__()

    def val_dataloader(self) -> Any:
        return DataLoader(self.random_val)


def test_lightnings_boring_model():
    module = BoringModel()
    before = weights(module)
    run = federate(module, 2, data=BoringData(), partitioner=IIDPartitioner(4))
    assert run.global_step == 2
    assert not torch.equal(module.layer.weight, before["layer.weight"])


def test_a_module_that_optimizes_manually():
    """Its own backward and step, and no loss that Lightning sees."""
    module = ManualOptimBoringModel()
    before = weights(module)
    run = federate(module, 2, data=BoringData(), partitioner=IIDPartitioner(4), local=LocalTraining(proximal_mu=0.1))
    assert run.global_step == 2
    assert not torch.equal(module.layer.weight, before["layer.weight"])
    assert not module.automatic_optimization


class Pictures(L.LightningDataModule):
    """Random colour images, two classes; the datamodule normalises on the device, as torchgeo's do."""

    def _set(self, n: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(n)
        return TensorDataset(torch.rand(n, 3, 32, 32, generator=generator), torch.arange(n) % 2)

    def train_dataloader(self) -> Any:
        return DataLoader(self._set(16), batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self._set(8), batch_size=4)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert self.trainer is not None
        images, labels = batch
        return (images - 0.5) / 0.25, labels


def test_batchnorm_with_a_scheduler():
    """ResNet-18 by torchvision in the module of Lightning's own examples: Adam and a schedule over steps."""

    class Classifier(L.LightningModule):  # the tutorial's, word for word a plain Lightning module
        def __init__(self) -> None:
            super().__init__()
            self.model = torchvision.models.resnet18(num_classes=2)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            assert x.min() < -0.5  # normalised by the datamodule's hook
            loss = F.cross_entropy(self.model(x), y)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", F.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=int(steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Classifier()
    run = federate(module, 2, data=Pictures(), partitioner=IIDPartitioner(2), strategy=AdaFed("val_loss", mode="min"))
    assert run.global_step == 2
    assert module.model.bn1.num_batches_tracked == 2 * 2 * 2  # rounds x epochs x batches of the larger client
    assert torch.isfinite(run.callback_metrics["val_loss"])


def test_several_optimizers_and_a_module_without_buffers():
    class Two(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = F.cross_entropy(self.second(self.first(batch[0]).tanh()), batch[1])
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.first.parameters(), 0.1), torch.optim.Adam(self.second.parameters(), 0.01)

    steps = []

    class Steps(L.Callback):
        def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
            steps.append((update.num_examples, update.num_steps, update.train_loss))

    run = federate(Two(), 1, Steps(), data=Blobs(), local=LocalTraining())
    assert run.global_step == 1
    assert sorted(steps) == [(7, 4, None), (13, 6, None), (20, 8, None)]  # two optimizers' steps a batch
