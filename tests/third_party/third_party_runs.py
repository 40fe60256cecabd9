"""Federations of other packages' modules; as a script, all of them on one rank of several."""

import logging
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from federations import Consecutive, trainer, weights
from lightning.pytorch.callbacks import ModelCheckpoint
from plain_training import TurnsSeed
from third_party_modules import CASES, Case, Loaders
from torch import Tensor

from fl_lightning import AdaFed, Checkpoints, FederatedDataModule, FederatedOrchestrator, LocalTraining

ROUNDS = 3


def divided(case: Case) -> FederatedDataModule:
    """The case's data: two unequal clients."""
    data = Loaders(case)
    return FederatedDataModule(data, Consecutive((len(data.train) - 5, 5)))


def adafed(case: Case, folder: Path, ranks: int = 1, resume: Path | None = None) -> tuple[L.LightningModule, L.Trainer]:
    """Three rounds of AdaFed on the module's own metric, with a checkpoint of each in ``epoch=<round>.ckpt``."""
    torch.manual_seed(1)
    module = case.make()
    federation = FederatedOrchestrator(
        AdaFed(case.metric, mode=case.mode, examples=True),
        LocalTraining(max_epochs=2, threads=1),
        checkpoints=Checkpoints(list(case.trusted)),
    )
    every = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    flags = {"devices": ranks, "strategy": "ddp"} if ranks > 1 else {}
    run = trainer(ROUNDS, federation, every, enable_checkpointing=True, num_sanity_val_steps=0, **flags)
    run.fit(module, divided(case), ckpt_path=None if resume is None else str(resume))
    return module, run


def plain_and_federated(case: Case) -> list[dict[str, Tensor]]:
    """The weights of plain Lightning training, and of a federation of one client with all data in order."""
    rounds = epochs = 2
    dtype, precision = (torch.float64, "64-true") if case.double else (torch.float32, "32-true")
    flags: dict[str, Any] = {"precision": precision, "num_sanity_val_steps": 0}
    modules = []
    for _ in range(2):
        torch.manual_seed(3)
        modules.append(case.make().to(dtype))
    plain, federated = modules
    trainer(rounds * epochs, TurnsSeed(epochs), **flags).fit(plain, Loaders(case, shuffle=False))
    local = LocalTraining(max_epochs=epochs, precision=precision, optimizer_state="kept")
    federation = FederatedOrchestrator(local=local, checkpoints=Checkpoints(list(case.trusted)))
    data = Loaders(case, shuffle=False)
    trainer(rounds, federation, **flags).fit(federated, FederatedDataModule(data, Consecutive([len(data.train)])))
    return [weights(plain), weights(federated)]


def main() -> None:
    """Run each named case on this rank, and write the weights of rank 0."""
    ranks, folder, *names = sys.argv[1:]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for number, name in enumerate(names):
        module, run = adafed(CASES[name], Path(folder) / str(number), int(ranks))
        if run.is_global_zero:
            torch.save(weights(module), Path(folder) / f"{number}.pt")


if __name__ == "__main__":
    main()
