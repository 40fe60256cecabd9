"""Send only the largest numbers and keep the rest for later (Stich et al. 2018, Sparsified SGD with Memory)."""

from __future__ import annotations

from dataclasses import replace

import torch

from fl_lightning.errors import require
from fl_lightning.transforms.base import Message, Sender, Transform


class TopK(Transform):
    """Send the numbers of the change that are largest in absolute value, with their positions.

    Args:
        share: the share of the parameters to send, in (0, 1]; at least one number.
        error_feedback: whether a client adds the numbers that it left out to its next change, so that nothing is lost. It then
            keeps a vector as large as the model.
    """

    kept_like_parameters = ("residual",)

    def __init__(self, share: float = 0.01, error_feedback: bool = True) -> None:
        require(0 < share <= 1, "federation.transforms.share", "above 0 and at most 1", share)
        self.share, self.error_feedback = share, error_feedback

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the sparse message; see :meth:`Transform.apply`."""
        change, kept = message.change, sender.kept.get("residual")
        if self.error_feedback and kept is not None:
            change = change + kept.to(change)
        size = change.numel()
        positions = change.abs().topk(max(1, round(self.share * size))).indices.sort().values
        sent = torch.zeros_like(change).index_copy(0, positions, change[positions])
        if self.error_feedback:
            sender.kept["residual"] = (change - sent).float()
        width = 4 if size < 2**32 else 8
        return replace(message, change=sent, positions=positions, overhead=message.overhead + positions.numel() * width)
