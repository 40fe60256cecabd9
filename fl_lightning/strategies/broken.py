"""Detect and report broken models, for strategies that tolerate them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.types import ClientUpdate


def is_finite(state: Tensor) -> bool:
    """Return whether all numbers of a model are finite, in one pass without a copy."""
    return not state.numel() or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(state))


def warn_of_broken(rule: str, updates: Sequence[ClientUpdate]) -> None:
    """Warn about each client whose model is not finite but takes part in a rule that sorts the models' coordinates.

    Args:
        rule: the name of the strategy.
        updates: the updates of a round, with their states.
    """
    for update in updates:
        if not is_finite(update.snapshot.vector):
            rank_zero_warn(
                f"{rule} ignores the weights of client {update.client} in round {update.round_idx} that are not finite: it has "
                "probably diverged. Lower its learning rate, clip with 'federation.local.gradient_clip_val', or check its data."
            )
