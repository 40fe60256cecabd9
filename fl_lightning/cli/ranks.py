"""Choose the number of ranks of a fit on a CPU: ``--trainer.devices auto``."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.seed import isolate_rng
from torch.nn.parameter import is_lazy

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.loaders import fewest_examples
from fl_lightning.server.checks.compatibility import round_size
from fl_lightning.strategies.base import JointStrategy
from fl_lightning.utilities.machine import available_memory, cores, own_memory

_MODELS = 8
"""Models that a rank needs beside its module: the global one, gradients, an optimizer's two states, an update, exact sums."""


@dataclass(frozen=True)
class Limit:
    """State how many ranks something allows.

    Attributes:
        ranks: their number, >= 1.
        why: the reason, as the end of a sentence.
    """

    ranks: int
    why: str

    def __str__(self) -> str:
        return f"Trains on {_count(self.ranks, 'rank')}: {self.why}."


def on_cpu(accelerator: Any) -> bool:
    """Return whether a Trainer with this setting of ``trainer.accelerator`` trains on the CPU."""
    others = (CUDAAccelerator, MPSAccelerator, XLAAccelerator)
    return accelerator == "cpu" or (accelerator == "auto" and not any(kind.is_available() for kind in others))


@contextmanager
def intra_op_threads(wanted: int | None) -> Iterator[None]:
    """Give this process, and those that Lightning starts for it, so many intra-op threads, or one.

    Threads change last bits, so under ``auto`` their number must not depend on the machine.
    """
    threads, given = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(wanted or 1)
    os.environ["OMP_NUM_THREADS"] = str(wanted or 1)  # which also keeps Lightning from dividing the cores by the ranks
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del os.environ["OMP_NUM_THREADS"]
        os.environ |= {} if given is None else {"OMP_NUM_THREADS": given}


def choose_ranks(
    settings: Any,
    module: LightningModule,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    nodes: int = 1,
    typed: bool = True,
) -> Limit:
    """Return the number of ranks of a fit, before its Trainer is built.

    A rank that Lightning has started takes the number of its starter instead of choosing again. The data are set up on a copy,
    with other random numbers than the fit's, so that the choice leaves no trace in the fit.

    Args:
        settings: the settings of the federation.
        module: the module.
        data: the datamodule, not set up.
        callbacks: the callbacks of the Trainer.
        nodes: the number of machines.
        typed: whether the command line was typed: Lightning starts other ranks by repeating it.
    """
    called = None if typed else Limit(1, "the command was called from Python, which starts no others")
    known = _started(nodes) or called or _one(settings, callbacks)
    if known is not None:
        return known
    try:
        with isolate_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit warns as well
            trial = copy.deepcopy(data)
            trial.prepare_data()
            trial.setup("fit")
            return min([*_limits(settings, module, trial), *_evaluated(trial)], key=lambda limit: limit.ranks)
    except Exception as error:  # which the fit reports, if it has it, too
        return Limit(1, f"the data could not be set up beforehand: {error}")


class IdleCores(Callback):
    """Say at the start of a fit on one rank how many ranks ``--trainer.devices auto`` would use, if there are more.

    Args:
        settings: the settings of the federation.
    """

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the line."""
        callbacks, data = trainer.callbacks, trainer.datamodule  # type: ignore[attr-defined]
        if trainer.world_size > 1 or not on_cpu(trainer.strategy.root_device.type) or _one(self._settings, callbacks):
            return
        best = min(_limits(self._settings, pl_module, data), key=lambda limit: limit.ranks)
        if best.ranks > 1:
            print(f"Trains on 1 rank, but there are {cores()} cores: '--trainer.devices auto' uses {best.ranks} ranks.")


def _started(nodes: int) -> Limit | None:
    """Return the number of ranks that something else has determined; None if nothing has."""
    if "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ:  # Lightning or torchrun
        count = os.environ.get("LOCAL_WORLD_SIZE") or int(os.environ["WORLD_SIZE"]) // nodes
        return Limit(int(count), "as many as were started")
    if SLURMEnvironment.detect():
        return Limit(1, "SLURM starts the others")
    return Limit(1, f"on each of {nodes} machines") if nodes > 1 else None


def _one(settings: Any, callbacks: Sequence[Callback]) -> Limit | None:
    """Return why a fit must use one rank; None if more would help."""
    engine = settings.local.engine
    reasons = {
        "'federation.enabled' is false, and more ranks would train on other batches": not settings.enabled,
        "'federation.pool' trains the clients elsewhere": settings.pool is not None,
        f"with the engine '{engine}' last bits depend on the number of ranks, so set it in 'trainer.devices'": (
            settings.local.side_by_side
        ),
    }
    return next((Limit(1, why) for why, holds in reasons.items() if holds), None)


def _limits(settings: Any, module: LightningModule, data: FederatedDataModule) -> Iterator[Limit]:
    """Yield what limits the number of ranks: cores, the clients of a round, and memory."""
    own, threads = cores(), settings.local.threads or 1
    each = f"{_count(own, 'core')}, {_count(threads, 'thread')} each"
    yield Limit(max(1, own // threads), each)
    clients = round_size(settings, data.num_clients)
    chains = settings.route.side_by_side(clients)
    yield Limit(max(1, chains), f"{each}, and {chains} of {_count(clients, 'client')} of a round can train at a time")
    free = available_memory()
    if free is not None:
        more = _models(settings, module, data.num_clients)
        needed = own_memory() + more
        why = f"{each}, but a rank needs {needed / 1e9:.1f} GB, and {(free + own_memory()) / 1e9:.1f} GB are available"
        yield Limit(1 + max(0, free - more) // needed, why)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _models(settings: Any, module: LightningModule, clients: int) -> int:
    """Return the bytes that training adds to a rank: copies of the model, and what is kept of each client."""
    size = sum(p.numel() * p.element_size() for p in module.parameters() if not is_lazy(p))
    keeps = isinstance(settings.strategy, JointStrategy) or settings.route.keeps_models
    keeps = keeps or settings.strategy.client_rule() is not None
    return _MODELS * size + (min(int(settings.storage.memory * 2**30), clients * size) if keeps else 0)


def _evaluated(data: FederatedDataModule) -> Iterator[Limit]:
    """Yield the size of the smallest validation set, which every rank needs a part of."""
    fewest = fewest_examples(data.val_dataloader()) if data.has_validation_set else None
    if fewest is not None:
        yield Limit(max(1, fewest), f"a validation set has {_count(fewest, 'example')}")
