"""Build a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fl_lightning.errors import require, require_counts
from fl_lightning.utilities.argument_types import ChecksTypes


class MLP(ChecksTypes, nn.Module):
    """Flatten the input and apply hidden layers with ReLU, each with dropout, and a layer of logits.

    With the defaults it has 199,210 parameters: McMahan et al.'s 2NN for MNIST.

    Args:
        in_features: the numbers per example, such as channels * height * width.
        hidden: the units of each hidden layer.
        num_classes: the number of outputs.
        dropout: the dropout probability after each hidden layer, in [0, 1).
    """

    def __init__(
        self, in_features: int = 784, hidden: Sequence[int] = (200, 200), num_classes: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require(in_features >= 1, "model.network.in_features", "at least 1", in_features)
        require_counts("model.network.", num_classes=num_classes)
        require(all(units >= 1 for units in hidden), "model.network.hidden", "numbers of units of at least 1", list(hidden))
        require(0 <= dropout < 1, "model.network.dropout", "at least 0 and below 1", dropout)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise([in_features, *hidden]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.layers = nn.Sequential(*layers, nn.Linear([in_features, *hidden][-1], num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, shape (N, num_classes), of inputs of shape (N, ...) with in_features numbers each."""
        logits: Tensor = self.layers(inputs)
        return logits
