"""Modules that nobody here wrote, federated without a change to them."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from federations import Blobs, federate, weights
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, ManualOptimBoringModel
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fl_lightning import IIDPartitioner, LocalTraining


class BoringData(BoringDataModule):
    def __init__(self) -> None:
        super().__init__()

    def val_dataloader(self) -> Any:
        return DataLoader(self.random_val)


@pytest.mark.parametrize("kind", [BoringModel, ManualOptimBoringModel])
def test_lightnings_boring_model(kind):
    """Also the one with its own backward and step, and no loss that Lightning sees."""
    module = kind()
    before = weights(module)
    run = federate(module, 2, data=BoringData(), partitioner=IIDPartitioner(4), local=LocalTraining(proximal_mu=0.1))
    assert run.global_step == 2
    assert not torch.equal(module.layer.weight, before["layer.weight"])


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
