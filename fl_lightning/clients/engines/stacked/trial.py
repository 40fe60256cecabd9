"""Try a training step once before stacking it, to find out whether it can be stacked and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.func import vmap

from fl_lightning.clients.engines.stacked.batches import StackedBatch
from fl_lightning.clients.engines.stacked.dropout import MaskSpec, StackedDropout
from fl_lightning.clients.engines.stacked.notes import Notes
from fl_lightning.clients.engines.stacked.stack import Tensors
from fl_lightning.clients.engines.stacked.traces import REMEDY, InPlace, Traces
from fl_lightning.errors import EngineError, FederationError

Call = Callable[[Tensors, Tensors, Any, int, StackedDropout], tuple[Tensor, Any]]
"""A function of parameters, buffers, batch, batch index and dropout that returns the loss and the new buffers."""


@dataclass(frozen=True)
class Trial:
    """Hold the requirements of a training step for batches of one shape.

    Attributes:
        masks: the masks of dropout, in the order of the calls.
        unused: the parameters that the loss does not depend on: they get no gradient, and optimizers skip them.
        depends_on_time: whether the step reads the epoch or the number of steps, so that every batch needs a new trial.
    """

    masks: list[MaskSpec]
    unused: frozenset[str]
    depends_on_time: bool


def attempt(
    module: LightningModule,
    call: Call,
    notes: Notes,
    traces: Traces,
    parameters: Tensors,
    buffers: Tensors,
    batch: StackedBatch,
    batch_idx: int,
) -> Trial:
    """Run the step for one client as it is and for all clients with vmap, without training or drawing random numbers.

    Raises:
        EngineError: if the step cannot be stacked, or if stacking would change a client's result.
    """
    before, watch = traces.now(), InPlace(module, parameters, batch.leaves)
    run: Any = module.trainer
    run.note(_time_was_read=False)
    try:
        with notes:
            alone, masks, unused = _first_client(call, parameters, buffers, batch, batch_idx)
            later = _first_client(call, parameters, buffers, batch, batch_idx + 1)
            own = {key: tensor.clone() for key, tensor in buffers.items()}

            def forward(mine: Tensors, theirs: Tensors, leaves: list[Tensor]) -> Tensor:
                return call(mine, theirs, batch.rebuild(leaves), batch_idx, StackedDropout(None))[0]

            with torch.no_grad():
                together = vmap(forward)(parameters, own, batch.leaves)[0]
    except FederationError:
        raise
    except Exception as error:
        raise cannot_stack(module, error) from error
    watch.refuse()
    traces.refuse(before, "The training_step")
    name, tolerance = type(module).__name__, torch.finfo(alone.dtype).eps ** 0.5
    if not torch.allclose(alone, together, tolerance, tolerance, equal_nan=True):
        raise EngineError(
            f"The training_step of {name} returns another loss when it runs again ({float(alone):.6g}, then "
            f"{float(together):.6g}), so it depends on something that stacked clients would share, such as the time. {REMEDY}"
        )
    if [spec.key for spec in masks] != [spec.key for spec in later[1]] or unused != later[2]:
        raise EngineError(f"The training_step of {name} depends on batch_idx, which stacked clients do not support. {REMEDY}")
    return Trial(masks, unused, bool(run._time_was_read))


def cannot_stack(module: LightningModule, error: Exception) -> EngineError:
    """Return an error that says why a step cannot be stacked, given torch's."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return EngineError(f"Cannot stack the training_step of {type(module).__name__}: {reason}. {REMEDY}")


def _first_client(
    call: Call, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int
) -> tuple[Tensor, list[MaskSpec], frozenset[str]]:
    first = {name: tensor[0].detach().requires_grad_() for name, tensor in parameters.items()}
    own = {name: tensor[0].clone() for name, tensor in buffers.items()}
    mode = StackedDropout(None)
    with torch.enable_grad():
        loss = call(first, own, batch.rebuild([leaf[0] for leaf in batch.leaves]), batch_idx, mode)[0]
    if not loss.requires_grad:
        raise EngineError(f"The loss of training_step has no gradient, so there is nothing to train. {REMEDY}")
    found = torch.autograd.grad(loss, list(first.values()), allow_unused=True)
    unused = frozenset(name for name, gradient in zip(first, found, strict=True) if gradient is None)
    return loss.detach(), mode.specs, unused
