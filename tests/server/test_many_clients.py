"""A round costs the same with many clients as with few: it handles its cohort, and neither lists nor shuffles all clients."""

import tracemalloc
from pathlib import Path
from typing import Any

import lightning as L
import torch
from federations import Plain, every_round, trainer
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, IIDPartitioner, LocalTraining, TopK

CLIENTS = 1_000_000


class Watch(L.Callback):
    """Note the most memory that Python takes at once in the rounds after the first, with their checkpoints."""

    peak = 0

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            tracemalloc.start()

    def on_train_end(self, *_: Any) -> None:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def test_a_round_of_a_million_clients_takes_no_memory_for_each_of_them(tmp_path: Path) -> None:
    examples = TensorDataset(torch.randn(CLIENTS, 4), torch.arange(CLIENTS) % 3)
    data = FederatedDataModule.from_loaders(DataLoader(examples, 2, shuffle=True), partitioner=IIDPartitioner(CLIENTS))
    federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), clients_per_round=2, transforms=[TopK(0.5)])
    watch = Watch()
    trainer(3, federation, watch, every_round(tmp_path), enable_checkpointing=True).fit(Plain(), data)
    assert 0 < watch.peak < 2 * CLIENTS  # bytes; a list of all clients takes 8 for each
    assert (tmp_path / "last.ckpt").stat().st_size < CLIENTS
