"""Tell a client's failure from a wrong setting, and refuse updates that cannot be aggregated."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.model_state import ModelState
from fl_lightning.types import ClientUpdate


def is_clients_fault(error: Exception) -> bool:
    """Whether an error is the client's, not that of the settings."""
    return not isinstance(error, ConfigurationError | MisconfigurationException)


def describe(error: Exception) -> str:
    """An error in a line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ClientError) else f"{type(error).__name__}: {text}"


def check_update(
    update: ClientUpdate, server: ModelState, size: int, tolerates_broken: bool, largest: float, reach: float
) -> ClientUpdate:
    """Refuse an update that cannot be aggregated, and measure how far it moves: in one pass over its weights.

    Args:
        update: with its state.
        server: the view of the global model.
        size: d, the length of its state.
        tolerates_broken: whether the strategy copes with what is not finite.
        largest: a weight beyond it is refused: sums of such would not be exact.
        reach: the largest absolute value of the server's parameters.

    Returns:
        The update with its norm, where that is finite.

    Raises:
        ClientError: if the loss or the new weights are not finite, or have another shape.
    """
    who = f"Client {update.client} (of {update.num_examples} examples) in round {update.round_idx}"
    assert update.state is not None
    if update.state.shape != (size,) or not update.state.is_floating_point():
        raise ClientError(
            f"{who}: it sent {update.state.dtype} of shape {tuple(update.state.shape)}; the model has {size} weights. Let "
            "'training_step' and the callbacks leave the network's layers as they are."
        )
    moved = server.distance(update.state)
    measured = replace(update, update_norm=moved if math.isfinite(moved) else None)
    if tolerates_broken:
        return measured
    remedy = "Lower its learning rate, clip with 'federation.local.gradient_clip_val', or look at its data."
    if update.train_loss is not None and not math.isfinite(update.train_loss):
        raise ClientError(f"{who}: the training loss is {update.train_loss}; finite losses are needed. {remedy}")
    weights = server.num_parameters
    if math.isfinite(moved) and reach + 1.01 * moved <= largest and math.isfinite(magnitude(update.state[weights:])):
        return measured  # no weight has moved further than all together
    low, high = map(float, torch.aminmax(update.state)) if size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):  # NaN comes out of aminmax
        raise ClientError(f"{who}: the weights that it sent are not finite. {remedy}")
    extreme = magnitude(update.state[:weights])  # buffers may be larger
    if extreme > largest:
        raise ClientError(f"{who}: it sent a weight of {extreme:.3g}, too large to be summed (above {largest:.3g}). {remedy}")
    return measured
