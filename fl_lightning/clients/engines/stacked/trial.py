"""Trying a training step once before it is stacked: what it needs, and whether it can be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.func import vmap

from fl_lightning.clients.engines.stacked.batches import StackedBatch
from fl_lightning.clients.engines.stacked.dropout import MaskSpec, StackedDropout
from fl_lightning.clients.engines.stacked.notes import Notes
from fl_lightning.clients.engines.stacked.stack import Tensors
from fl_lightning.errors import EngineError, FederationError

REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."
Call = Callable[[Tensors, Tensors, Any, int, StackedDropout], tuple[Tensor, Any]]
"""Parameters, buffers, batch, its index, dropout: the loss, and the buffers afterwards."""


@dataclass(frozen=True)
class Trial:
    """Hold what a training step needs for batches of one shape.

    Attributes:
        masks: of dropout, in the order of the calls.
        unused: parameters that the loss does not reach: autograd gives them no gradient, and optimizers leave them.
        depends_on_time: whether it asks for the epoch or the number of steps: then the next batch is tried anew.
    """

    masks: list[MaskSpec]
    unused: frozenset[str]
    depends_on_time: bool


def attempt(
    module: LightningModule,
    call: Call,
    notes: Notes,
    parameters: Tensors,
    buffers: Tensors,
    batch: StackedBatch,
    batch_idx: int,
) -> Trial:
    """Run the step for one client as it is, and for all by vmap; without training, and without random numbers.

    Raises:
        EngineError: if the step cannot be stacked, or would not give what each client by itself gives.
    """
    name = type(module).__name__
    before = _state_of(module), _random_state()
    run: Any = module.trainer
    run.note(_time_was_read=False)
    try:
        with notes:
            masks, unused = _first_client(call, parameters, buffers, batch, batch_idx)
            later = _first_client(call, parameters, buffers, batch, batch_idx + 1)
            own = {key: tensor.clone() for key, tensor in buffers.items()}

            def forward(mine: Tensors, theirs: Tensors, leaves: list[Tensor]) -> Tensor:
                return call(mine, theirs, batch.rebuild(leaves), batch_idx, StackedDropout(None))[0]

            with torch.no_grad():
                vmap(forward)(parameters, own, batch.leaves)
    except FederationError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise EngineError(f"The training_step of {name} cannot be stacked: {reason}. {REMEDY}") from error
    _refuse_traces(name, before, (_state_of(module), _random_state()))
    if [spec.key for spec in masks] != [spec.key for spec in later[0]] or unused != later[1]:
        raise EngineError(f"The training_step of {name} does another thing for each batch_idx. {REMEDY}")
    return Trial(masks, unused, bool(run._time_was_read))


def _first_client(
    call: Call, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int
) -> tuple[list[MaskSpec], frozenset[str]]:
    first = {name: tensor[0].detach().requires_grad_() for name, tensor in parameters.items()}
    own = {name: tensor[0].clone() for name, tensor in buffers.items()}
    mode = StackedDropout(None)
    with torch.enable_grad():
        loss = call(first, own, batch.rebuild([leaf[0] for leaf in batch.leaves]), batch_idx, mode)[0]
    if not loss.requires_grad:
        raise EngineError(f"The loss of training_step needs no gradient: there is nothing to train by. {REMEDY}")
    found = torch.autograd.grad(loss, list(first.values()), allow_unused=True)
    unused = frozenset(name for name, gradient in zip(first, found, strict=True) if gradient is None)
    return mode.specs, unused


def _state_of(module: LightningModule) -> dict[tuple[int, str], Any]:
    """Plain values and tensors that are attributes of the module or its parts."""
    plain = (int, float, str, bool, type(None), Tensor)
    return {
        (id(part), name): value
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, plain) and not name.startswith("_")
    }


def _random_state() -> tuple[Any, Any]:
    state = np.random.get_state()
    return random.getstate(), (state[1].tobytes(), state[2])  # type: ignore[index]


def _refuse_traces(name: str, before: tuple[Any, Any], after: tuple[Any, Any]) -> None:
    if before[1] != after[1]:
        raise EngineError(
            f"The training_step of {name} draws random numbers from numpy or Python's random, which stacked clients would "
            f"share. {REMEDY}"
        )
    changed = {key[1] for key in before[0].keys() | after[0].keys() if before[0].get(key) is not after[0].get(key)}
    if changed:
        raise EngineError(
            f"The training_step of {name} changes '{sorted(changed)[0]}', which stacked clients would share. {REMEDY}"
        )
