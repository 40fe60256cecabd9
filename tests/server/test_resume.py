"""What a resumed run finds where the checkpoint left it, beside what tests/test_matrix.py compares for every algorithm."""

from __future__ import annotations

import random

import lightning as L
import numpy as np
import torch
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights

from fl_lightning import FederatedDataModule, FederatedOrchestrator


class LoadsPretrained(Plain):
    """A hook loads its weights; after each validation it draws from the global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, ...]] = []

    def on_fit_start(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))

    def on_validation_epoch_end(self):
        self.drawn.append((float(torch.rand(())), float(np.random.rand()), random.random()))


def test_what_hooks_load_and_draw(tmp_path):
    """Loaded weights do not replace the checkpoint's; and each generator goes on, whatever a new process starts from.

    Another fit with the callback of the resumed run begins anew.
    """
    runs = []
    for rounds, seed, ckpt_path in ((3, 7, None), (2, 7, None), (3, 99, str(tmp_path / "last.ckpt"))):
        L.seed_everything(seed, verbose=False)
        module = LoadsPretrained()
        run = federate(module, rounds, every_round(tmp_path), ckpt_path=ckpt_path, flags={"enable_checkpointing": True})
        runs.append(module)
    whole, first, second = runs
    assert same_bits(weights(whole), weights(second))
    assert not same_bits(weights(whole), weights(first))
    assert first.drawn + second.drawn == whole.drawn
    assert [len(set(of_one)) for of_one in zip(*whole.drawn, strict=True)] == [3, 3, 3]

    (federation,) = (callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))
    L.seed_everything(7, verbose=False)
    trainer(2, federation).fit(anew := LoadsPretrained(), FederatedDataModule(Blobs(), Consecutive()))
    assert anew.drawn == first.drawn
