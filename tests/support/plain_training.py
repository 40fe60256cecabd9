"""The oracle of local training: one client with all data, in file order, is plain Lightning training."""

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from engine_runs import Collect
from federations import SIZES, Blobs, Consecutive, federate, trainer, weights
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import LocalTraining
from fl_lightning.functional.seeding import derive_seed

Make = Callable[[], L.LightningModule]
SIZE = 23
"""The client's examples: with batches of 5, the last one of an epoch is smaller."""


class InOrder(L.LightningDataModule):
    """What a user trains on centrally: the same examples in the same order, and nothing of ours."""

    def __init__(self, examples: tuple[Tensor, ...], batch_size: int = 5) -> None:
        super().__init__()
        self.examples, self.batch_size = examples, batch_size

    def train_dataloader(self) -> Any:
        # A DataLoader draws a seed for its workers; from a generator of its own, so that dropout's numbers do not move.
        return DataLoader(TensorDataset(*self.examples), self.batch_size, generator=torch.Generator())


class TurnsSeed(Callback):
    """Seed torch where a federation's turns do: every ``epochs`` epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch % self.epochs == 0:
            torch.manual_seed(derive_seed(0, trainer.current_epoch // self.epochs, 0, "training"))


def plain_weights(
    make: Make, rounds: int, epochs: int, dtype: Any, flags: dict[str, Any], callbacks: list[Callback]
) -> dict[str, Tensor]:
    """The weights of plain Lightning training over all epochs of all rounds."""
    torch.manual_seed(3)
    module = make().to(dtype)
    run = trainer(rounds * epochs, TurnsSeed(epochs), *callbacks, **flags)
    run.fit(module, InOrder(Blobs(SIZE, dtype=dtype).train))
    return weights(module)


def federated_weights(make: Make, rounds: int, dtype: Any, flags: dict[str, Any], **local: Any) -> dict[str, Tensor]:
    """The weights of a federation of the one client that has all data."""
    torch.manual_seed(3)
    module = make().to(dtype)
    data = Blobs(SIZE, shuffle=False, dtype=dtype)
    federate(module, rounds, data=data, partitioner=Consecutive([SIZE]), local=LocalTraining(**local), flags=flags)
    return weights(module)


def distance_from_plain(
    make: Make,
    engine: Any = "trainer",
    rounds: int = 3,
    epochs: int = 2,
    dtype: Any = torch.float64,
    without: tuple[str, ...] = (),
    **local: Any,
) -> float:
    """The largest difference between the weights of a federation of one client and of plain Lightning.

    Args:
        make: builds the module.
        engine: the engine of the federation.
        rounds: N.
        epochs: E.
        dtype: of the weights and inputs.
        without: tensors that are not compared.
        local: settings of the local training; those that a Trainer has too are the plain run's flags.
    """
    shared = ("gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches", "precision", "limit_train_batches")
    precision = {"precision": "64-true"} if dtype is torch.float64 else {}
    flags = precision | {name: local[name] for name in shared if name in local}
    plain = plain_weights(make, rounds, epochs, dtype, flags, copy.deepcopy(local.get("callbacks", [])))
    settings = {"engine": engine, "max_epochs": epochs, "optimizer_state": "kept", **precision, **local}
    outer = {"precision": flags["precision"]} if "precision" in flags else {}
    found = federated_weights(make, rounds, dtype, outer, **settings)
    assert plain.keys() == found.keys()
    moved = {name for name, tensor in found.items() if tensor.is_floating_point() and tensor.dtype != dtype}
    assert not moved
    return max(float((plain[name].double() - found[name].double()).abs().max()) for name in plain if name not in without)


def client_by_client(make: Make, **local: Any) -> float:
    """How far the clients of a first round are from plain training, each alone, from the same start."""
    torch.manual_seed(3)
    module, sent = make().double(), Collect()
    start = copy.deepcopy(module)
    data, flags = Blobs(shuffle=False, dtype=torch.float64), {"precision": "64-true"}
    federate(module, 1, sent, data=data, local=LocalTraining(precision="64-true", **local), flags=flags)
    found, models = [], {update.client: update.snapshot.vector for update in sent.updates}
    for client, examples in enumerate(zip(*(part.split(list(SIZES)) for part in data.train), strict=True)):
        alone = copy.deepcopy(start)
        trainer(1, precision="64-true").fit(alone, InOrder(examples))
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in alone.parameters()])
        found.append(float((vector - models[client][: len(vector)]).abs().max()))
    return max(found)
