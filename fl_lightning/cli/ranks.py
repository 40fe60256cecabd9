"""Choose the number of ranks of a fit on a CPU: ``--trainer.devices auto``."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.seed import isolate_rng

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.loaders import fewest_examples
from fl_lightning.server.checks.compatibility import round_size
from fl_lightning.utilities.machine import cores


def on_cpu(accelerator: Any) -> bool:
    """Return whether a Trainer with this setting of ``trainer.accelerator`` trains on the CPU."""
    others = (CUDAAccelerator, MPSAccelerator, XLAAccelerator)
    return accelerator == "cpu" or (accelerator == "auto" and not any(kind.is_available() for kind in others))


@contextmanager
def intra_op_threads(wanted: int | None) -> Iterator[None]:
    """Set the number of intra-op threads, one by default, of this process and of those that Lightning starts.

    Threads change last bits, so under ``auto`` their number must not depend on the machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(wanted or 1)
    with patch.dict(os.environ, OMP_NUM_THREADS=str(wanted or 1)):  # also keeps Lightning from dividing the cores by the ranks
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def choose_ranks(settings: Any, data: FederatedDataModule, nodes: int = 1, typed: bool = True) -> tuple[int, str]:
    """Return the number of ranks of a fit, before its Trainer is built, and why.

    A rank that Lightning has started takes the number of its starter instead of choosing again. The data are set up on a copy,
    with other random numbers than the fit's, so that the choice leaves no trace in the fit.

    Args:
        settings: the settings of the federation.
        data: the datamodule, not set up.
        nodes: the number of machines.
        typed: whether the command line was typed: Lightning starts other ranks by repeating it.
    """
    if "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ:  # Lightning or torchrun
        count = os.environ.get("LOCAL_WORLD_SIZE") or int(os.environ["WORLD_SIZE"]) // nodes
        return int(count), "as many as were started"
    if why := _why_one(settings, nodes, typed):
        return 1, why
    try:
        with isolate_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit warns as well
            trial = copy.deepcopy(data)
            trial.prepare_data()
            trial.setup("fit")
            return _most(settings, trial)
    except Exception as error:  # which the fit reports, if it has it, too
        return 1, f"the data could not be set up beforehand: {error}"


class IdleCores(Callback):
    """Say at the start of a fit on one rank how many ranks ``--trainer.devices auto`` would use, if there are more.

    Args:
        settings: the settings of the federation.
    """

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the line."""
        if trainer.world_size > 1 or not on_cpu(trainer.strategy.root_device.type) or _why_one(self._settings):
            return
        ranks, _ = _most(self._settings, trainer.datamodule)  # type: ignore[attr-defined]
        if ranks > 1:
            print(f"Trains on 1 rank, but there are {cores()} cores: '--trainer.devices auto' uses {ranks} ranks.")


def _why_one(settings: Any, nodes: int = 1, typed: bool = True) -> str:
    """Return why a fit must use one rank; an empty string if more would help."""
    reasons = {
        "SLURM starts the others": SLURMEnvironment.detect(),
        f"on each of {nodes} machines": nodes > 1,
        "the command was called from Python, which starts no others": not typed,
        "'federation.enabled' is false, and more ranks would train on other batches": not settings.enabled,
        "'federation.pool' trains the clients elsewhere": settings.pool is not None,
        f"with the engine '{settings.local.engine}' last bits depend on the number of ranks, so set it in 'trainer.devices'": (
            settings.local.side_by_side
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _most(settings: Any, data: FederatedDataModule) -> tuple[int, str]:
    """Return the number of ranks that the cores, the clients of a round and the validation set allow, and why."""
    own, threads = cores(), settings.local.threads or 1
    clients = round_size(settings, data.num_clients)
    chains = settings.route.side_by_side(clients)
    fewest = fewest_examples(data.val_dataloader()) if data.has_validation_set else None
    why = f"cores {own}, threads of a rank {threads}, clients of a round that can train at a time {chains} of {clients}"
    if fewest and fewest < min(own // threads, chains):  # every rank needs a part
        return fewest, f"examples of the smallest validation set {fewest}"
    return max(1, min(own // threads, chains)), why
