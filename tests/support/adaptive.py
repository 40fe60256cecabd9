"""Modules with losses that adapt to what the server's validation finds."""

from typing import Any

import torch
from federations import Plain
from torch import Tensor, nn

from fl_lightning import AdaptiveLoss, F1WeightedCrossEntropy


class Tempered(AdaptiveLoss):
    """All a user writes for a signal of their own: cross-entropy scaled by the last validation's loss."""

    server_buffers = ("factor",)
    factor: Tensor

    def __init__(self, signal: Any = "val_loss") -> None:
        super().__init__()
        self.signal = signal
        self.register_buffer("factor", torch.ones(()))

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target) * self.factor

    def adapt(self, signal: Tensor) -> None:
        self.factor.copy_(signal)

    def figures(self) -> dict[str, Tensor]:
        return {"factor": self.factor.clone()}


class Own(Plain):
    """A user's module with an adaptive loss, validated by what it logs itself."""

    def __init__(self, loss: nn.Module, **more: Any) -> None:
        super().__init__(**more)
        self.loss = loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])


class Calls(Own):
    """It computes its loss in validation, too."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.loss(self(batch[0]), batch[1])


class TwoLosses(nn.Module):
    """One that follows a logged figure, and one that follows a metric of outputs and target."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Tempered("val_acc"), F1WeightedCrossEntropy(3)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self.one(outputs, target) + self.other(outputs, target)


class Adapting(Calls):
    """A module with both."""

    def __init__(self, **more: Any) -> None:
        super().__init__(TwoLosses(), **more)
        del self.hparams["loss"]  # checkpoints hold the hyperparameters, and trust no such object
