"""Modules that nobody here wrote, federated without a change to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import federate, weights
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, ManualOptimBoringModel
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
