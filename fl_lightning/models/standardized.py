"""Scale a network's inputs by the mean and the deviation over the examples of all clients."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.errors import DataError, require
from fl_lightning.functional.exact_moments import Moments, moments_of_batches
from fl_lightning.functional.small_counts import most_frequent
from fl_lightning.utilities.argument_types import ChecksTypes

_UNMEASURED = (
    "Standardized has not been measured, so inputs pass unchanged. A federation measures it before round 0; in any other "
    "training, call its 'measure' with the training batches first."
)


class Standardized(ChecksTypes, nn.Module):
    """Subtract the mean of each channel, divide by its standard deviation, and apply a network.

    In a federation, both are those of the clients' training examples together, which clients measure before round 0, as
    they are in an evaluation. If an option hides single clients, the server learns only their totals. Both are
    buffers of the server: clients get them with the model, they are never averaged, and checkpoints, exports and
    ``torch.export`` contain them, so that the model predicts from raw inputs. A missing number (NaN) becomes the mean, so 0;
    a missing category becomes the most frequent one if the schema of the tables says so. A constant channel is only centred.

    Args:
        network: the network.
        num_features: the number d of channels, >= 1: of columns in inputs of shape (N, d), of colours in images (N, d, H, W).
        min_count: the fewest rows of a category that a client of a simulation tells, >= 1; with the sites' ``policy.min_rows``
            both have the same scale.

    Raises:
        ConfigurationError: if a number is below 1.

    Example:
        >>> import torch
        >>> from fl_lightning import MLP, Standardized
        >>> network = Standardized(MLP(2, [4], num_classes=3), num_features=2)
        >>> network.measure([torch.tensor([[1.0, 10.0], [3.0, float("nan")]])])
        >>> network.mean, network.std
        (tensor([ 2., 10.]), tensor([1., 1.]))
    """

    server_buffers = ("mean", "std", "fill", "measured")
    fill: Tensor
    mean: Tensor
    std: Tensor
    measured: Tensor

    def __init__(self, network: nn.Module, num_features: int, min_count: int = 1) -> None:
        super().__init__()
        require(num_features >= 1, "model.network.num_features", "at least 1", num_features)
        require(min_count >= 1, "model.network.min_count", "at least 1", min_count)
        self.network, self.num_features, self.min_count = network, num_features, min_count
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))
        self.register_buffer("fill", torch.zeros(num_features))
        self.register_buffer("measured", torch.tensor(False))
        self._is_measured = False  # reading the buffer would wait for a GPU in each step
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]

    def set_moments(
        self, moments: Moments, filled: Sequence[Sequence[int]] = (), partial: bool = False, names: Sequence[str] | None = None
    ) -> None:
        """Set mean, deviation, and what replaces missing numbers, from the moments of all examples.

        Args:
            moments: the moments.
            filled: the channels of each column whose missing values become its most frequent category, the first of equal ones:
                a channel of 0 and 1 for each category, or one alone.
            partial: whether a channel may have no number, because clients do not tell sums over few rows; it is not scaled.
            names: the names of the channels, for messages; None numbers them.

        Raises:
            DataError: if they have another number of channels, or if a channel has no number.
        """
        self.require_channels(moments)
        names = names or [f"channel {k}" for k in range(self.num_features)]
        if 0 in moments.counts and not partial:
            raise DataError(
                f"No client has a number for {names[moments.counts.index(0)]} of the inputs. Leave it out of the inputs."
            )
        deviations = [deviation or 1.0 for deviation in moments.deviations()]
        self.mean.copy_(torch.tensor(moments.means(), dtype=torch.float64))
        self.std.copy_(torch.tensor(deviations, dtype=torch.float64))
        self.fill.copy_(self.mean)
        for group in filled:
            self.fill[list(group)] = torch.tensor(most_frequent(moments, group, names))
        self.measured.fill_(True)
        self._is_measured = True

    def require_channels(self, moments: Moments) -> None:
        """Refuse moments of another number of channels.

        Raises:
            DataError: with both numbers.
        """
        if len(moments.counts) != self.num_features:
            raise DataError(
                f"The inputs have {len(moments.counts)} channels, but 'model.network.num_features' is {self.num_features}. Set "
                f"it to {len(moments.counts)}."
            )

    @property
    def is_measured(self) -> bool:
        """Return whether mean and deviation have been set, or loaded from a model in which they were."""
        return self._is_measured

    def measure(self, batches: Iterable[Any]) -> None:
        """Set mean and deviation from batches, whose inputs come first: for a training without a federation.

        Raises:
            DataError: as :meth:`set_moments` does, or if the inputs cannot be measured.
        """
        self.set_moments(moments_of_batches(batches))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's output for inputs of shape (N, d) or (N, d, ...)."""
        if self.training and not self._is_measured:
            self._is_measured = bool(self.measured)  # a client gets the buffers alone
            if not self._is_measured:
                warnings.warn(_UNMEASURED, stacklevel=2)
        shape = (1, -1, *[1] * (inputs.dim() - 2))
        whole = torch.where(torch.isnan(inputs), self.fill.view(shape), inputs)
        output: Tensor = self.network((whole - self.mean.view(shape)) / self.std.view(shape))
        return output


def _note_loaded(part: nn.Module, keys: Any) -> None:
    part._is_measured = bool(part.measured)  # type: ignore[assignment]


def standardized_parts(module: nn.Module) -> list[Standardized]:
    """Return the parts of a module that scale their inputs."""
    return [part for part in module.modules() if isinstance(part, Standardized)]
