"""Small federations that the tests share: real Lightning objects, synthetic data, seconds to run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback, LocalTraining, Partitioner
from fl_lightning.data import TensorLoader

SIZES = (7, 20, 13)
"""Unequal clients; with batches of 5 each takes another number of steps."""
CLASSES = 3


def blobs(n: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Points around three centres, coordinates of both signs."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    centres = torch.tensor([[2.0, -1.0, 0.5, 0.0], [-2.0, 1.0, 0.0, 1.0], [0.0, 2.0, -1.5, -1.0]])
    return (centres[labels] + torch.randn(n, 4, generator=generator)).to(dtype), labels


class Blobs(L.LightningDataModule):
    def __init__(
        self, n: int = sum(SIZES), batch_size: int = 5, shuffle: bool = True, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.train = blobs(n, 1, dtype)
        self.val = blobs(61, 2, dtype)
        self.batch_size, self.shuffle = batch_size, shuffle

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.train), batch_size=self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> Any:
        return TensorLoader(self.val, 31)

    def test_dataloader(self) -> Any:
        return TensorLoader(self.val, 31)

    def predict_dataloader(self) -> Any:
        return TensorLoader(self.val, 31)


def changed(part: str, loader: Any) -> Blobs:
    """Return data with another loader of a part, such as ``val``."""
    data = Blobs()
    setattr(data, f"{part}_dataloader", lambda: loader)
    return data


class NoValidation(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*blobs(sum(SIZES), 1)), batch_size=5)


class Consecutive(Partitioner):
    """Client k gets the next SIZES[k] examples, in order."""

    needs_labels = False

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.sizes = list(sizes)

    def partition(self, num_examples: int, labels: Tensor | None) -> list[Tensor]:
        return list(torch.arange(sum(self.sizes)).split(self.sizes))


def ready(data: Any) -> Any:
    """Return data that are set up."""
    data.setup("fit")
    return data


def client_scores(federation: FederatedOrchestrator, whose: str = "scores") -> dict[int, Tensor]:
    """The scores on the clients' own test parts so far, by round; empty without an evaluation there."""
    hooks: Any = federation._run.hooks.get("client_evaluation")
    return {} if hooks is None else getattr(hooks, whose)


def network(batchnorm: bool = False) -> nn.Sequential:
    norm = [nn.BatchNorm1d(8)] if batchnorm else []
    return nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, CLASSES))


class Plain(L.LightningModule):
    """What a user might have: own loss, own metrics that are logged as objects, SGD."""

    def __init__(self, lr: float = 0.1, batchnorm: bool = False, momentum: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = network(batchnorm)
        self.train_acc = MulticlassAccuracy(CLASSES, average="micro", validate_args=False)
        self.val_acc = MulticlassAccuracy(CLASSES, average="micro", validate_args=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, on_epoch=True)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), batch_size=len(y), sync_dist=True)
        self.log("val_acc", self.val_acc)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=self.hparams.momentum)


class Cohorts(FederationCallback):
    """Notes who takes part in each round."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def on_round_start(self, trainer: Any, pl_module: Any, round_idx: int, cohort: Any) -> None:
        self.seen.append(tuple(cohort))


def trainer(rounds: int, *callbacks: Any, **flags: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    flags = {"accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **flags}  # fits of the command line check first
    return L.Trainer(max_epochs=rounds, callbacks=list(callbacks), **flags)


def federate(
    module: L.LightningModule,
    rounds: int = 3,
    *callbacks: Any,
    data: L.LightningDataModule | None = None,
    partitioner: Partitioner | None = None,
    ckpt_path: str | None = None,
    accelerator: str = "cpu",
    flags: dict[str, Any] | None = None,
    **settings: Any,
) -> L.Trainer:
    """Fit a module as a federation and return the Trainer."""
    settings.setdefault("local", LocalTraining(max_epochs=2))
    federation = FederatedOrchestrator(**settings)
    run = trainer(rounds, federation, *callbacks, accelerator=accelerator, **(flags or {}))
    run.fit(module, FederatedDataModule(data or Blobs(), partitioner or Consecutive()), ckpt_path=ckpt_path)
    return run


def every_round(folder: Path | str) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
