"""Every algorithm stops and goes on with the weights of the uninterrupted run, bit for bit."""

from __future__ import annotations

import random

import lightning as L
import numpy as np
import pytest
import torch
from algorithms import ALGORITHMS, outcome, prepare
from federations import Blobs, Consecutive, Plain, every_round, same_bits, trainer, weights
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FederatedDataModule, FederatedOrchestrator


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    """From the checkpoint that it wrote after two of its three rounds, as a run has it that was killed then."""
    module, data, federation = prepare(name)
    kept = ModelCheckpoint(tmp_path, filename="{step}", save_on_train_epoch_end=True, save_top_k=-1)
    trainer(3, federation, kept, enable_checkpointing=True).fit(module, data)
    expected = outcome(module, federation)

    module, data, federation = prepare(name)  # nothing of the first half is left but the checkpoint
    run = trainer(3, federation)
    run.fit(module, data, ckpt_path=str(tmp_path / "step=2.ckpt"))
    assert run.global_step == 3
    assert same_bits(outcome(module, federation), expected)
    halfway = torch.load(tmp_path / "step=2.ckpt", weights_only=False)["state_dict"]
    assert not same_bits(halfway, {name: expected[name] for name in halfway})


class LoadsPretrained(Plain):
    def on_fit_start(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))


def test_weights_that_a_hook_loads_do_not_replace_the_checkpoints(tmp_path):
    finals = []
    for rounds, resumes in ((3, False), (2, False), (3, True)):
        saves = [every_round(tmp_path)] if rounds == 2 else []
        module, run = LoadsPretrained(), trainer(rounds, FederatedOrchestrator(), *saves, enable_checkpointing=bool(saves))
        last = str(tmp_path / "last.ckpt") if resumes else None
        run.fit(module, FederatedDataModule(Blobs(), Consecutive()), ckpt_path=last)
        finals.append(weights(module))
    assert same_bits(finals[0], finals[2])
    assert not same_bits(finals[0], finals[1])


class Draws(Plain):
    """Draws from the global generators of torch, NumPy and Python in each validation."""

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            drawn = {"torch": float(torch.rand(())), "numpy": float(np.random.rand()), "python": random.random()}
            seen[self.trainer.current_epoch] = drawn


seen: dict[int, dict[str, float]] = {}


@pytest.mark.parametrize("library", ["torch", "numpy", "python"])
def test_a_resumed_run_draws_the_global_random_numbers_of_the_uninterrupted_one(library, tmp_path):
    """Code of the user's that draws outside of the clients finds each generator where the checkpoint left it."""
    runs = []
    for rounds, resumes in ((3, False), (2, False), (3, True)):
        if not resumes:
            L.seed_everything(7, verbose=False)
            seen.clear()
        else:
            L.seed_everything(99, verbose=False)  # what the new process happens to start from
        saves = [every_round(tmp_path)] if rounds == 2 else []
        run = trainer(rounds, FederatedOrchestrator(), *saves, enable_checkpointing=bool(saves))
        run.fit(
            Draws(), FederatedDataModule(Blobs(), Consecutive()), ckpt_path=str(tmp_path / "last.ckpt") if resumes else None
        )
        runs.append([seen[r][library] for r in sorted(seen)])
    whole, first, both = runs
    assert len(set(whole)) == len(whole) == 3
    federation = next(callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))
    L.seed_everything(7, verbose=False)
    trainer(2, federation).fit(Draws(), FederatedDataModule(Blobs(), Consecutive()))  # begins anew: nothing is restored
    assert [seen[r][library] for r in (0, 1)] == first
    assert first == whole[:2]
    assert both == whole
