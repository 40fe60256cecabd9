"""Runs that are resumed with other settings."""

import copy
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from federations import Blobs, Consecutive, Plain, every_round, trainer
from torch.utils.data import DataLoader, Dataset

from fl_lightning import FedAvg, FederatedDataModule, FederatedOrchestrator, LocalTraining

Run = dict[str, Any]


def local(**more: Any) -> dict[str, Any]:
    return {"local": LocalTraining(**{"max_epochs": 2, **more})}


def sgd(**settings: Any) -> dict[str, Any]:
    return {"server_optimizer": lambda parameters: torch.optim.SGD(parameters, **settings)}


class OwnStrategy(FedAvg):
    """A user's own, with an argument that nobody else knows."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound


class Lazy(Dataset):
    """A map-style dataset that reads examples one by one."""

    def __init__(self, scale: float = 1.0, noise: bool = False) -> None:
        self._scale, self._noise = scale, np.random.default_rng() if noise else None

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = torch.full((4,), index / 300 * self._scale) + 0.01 * torch.rand(4)
        if self._noise is not None:
            x = x + float(self._noise.normal())
        return x, index % 3


class LazyData(Blobs):
    def __init__(self, noise: bool = False, **more: Any) -> None:
        super().__init__()
        self.train_set = Lazy(noise=noise, **more)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train_set, batch_size=50, shuffle=True)


class Cycle(Plain):
    """One cycle over the steps of a client in all rounds, or over a fixed number of them."""

    def __init__(self, steps: int | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = self.hparams.steps or int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def run(folder: Path, rounds: int, settings: Run, **more: Any) -> L.LightningModule:
    """Fit the settings for some rounds; a module that they name is taken as if it were new."""
    settings = copy.deepcopy(settings)
    torch.manual_seed(3)
    module = settings.pop("module", None) or Plain()
    flags = {"enable_checkpointing": True, "default_root_dir": str(folder), **settings.pop("flags", {})}
    parts, partitioner = settings.pop("parts", {}), settings.pop("partitioner", None) or Consecutive()
    data = FederatedDataModule(settings.pop("data", None) or Blobs(), partitioner, **parts)
    path = more.pop("ckpt_path", None)
    settings = {"local": LocalTraining(max_epochs=2), **settings, **more}
    trainer(rounds, FederatedOrchestrator(**settings), every_round(folder), **flags).fit(module, data, ckpt_path=path)
    return module
