"""What masks cost: seconds and bytes of a round beside the same round without them, by turns.

    python tools/benchmark_masks.py clients --clients 10 100 1000    # simulated rounds with a tiny model, in one process
    python tools/benchmark_masks.py steps --parameters 25000000      # each step of a client and of the server
    python tools/benchmark_masks.py flower --hidden 32               # over real processes of Flower, TLS and keys

Without masks, each repeat runs twice, before and after the run with masks: the second is the control, and a ratio within its
spread says nothing. Medians over repeats, and over rounds with 'flower'. One thread in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from benchmark_loop import Clock, Plain, Sizes, quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining, SecureAggregation, keep_freed_memory
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import add_words, from_words, to_words
from fl_lightning.options.secure_aggregation.client import MaskingClient
from fl_lightning.options.secure_aggregation.description import RoundDescription
from fl_lightning.options.secure_aggregation.keys import KeyRing, key_from, openssh
from fl_lightning.options.secure_aggregation.messages import announcement_in, packed, packed_announcement, unpacked
from fl_lightning.options.secure_aggregation.server import MaskedRound

KEY_BYTES, SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES = 192, 82, 33, 96
"""An announcement (two keys, a commitment, a signature), two sealed shares, an opened share, and a signature of a list."""
EXTRA_WORDS = 5
"""The words beside the model's: the sum of the weights and that of the examples take one, that of the losses two; see 'sizes'."""


# ---------------------------------------------------------------- simulated rounds


class Rows(L.LightningDataModule):
    """Ten random examples of 20 numbers for each client."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        count = 10 * clients
        self.rows = torch.rand(count, 20, generator=draw), torch.randint(0, 10, (count,), generator=draw)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows), batch_size=10)


def simulated(clients: int, masked: bool, rounds: int) -> tuple[float, float, float]:
    """Return the seconds of a round, and the bytes of a client up and down; the first round is not counted."""
    quiet()
    clock = Clock(skipped=1)
    option = SecureAggregation() if masked else None
    federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), secure_aggregation=option)
    trainer = L.Trainer(
        max_epochs=rounds + 1,
        accelerator="cpu",
        callbacks=[federation, clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))  # 1,002 parameters
    trainer.fit(Plain(net), FederatedDataModule(Rows(clients), Sizes([10] * clients)))
    up, down = (float(trainer.callback_metrics[f"federation/bytes_{way}"]) / clients for way in ("up", "down"))
    return clock.seconds / rounds, up, down
