"""Stand in for clients' data that are elsewhere: the server knows their names and sizes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fl_lightning.data.client_source import ClientSource, Sizes
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.tensor_loader import Coins
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.messages import ClientInfo


def clients_elsewhere(trainer: Trainer | None) -> bool:
    """Return whether a callback of the Trainer says that the clients hold their own data outside this process."""
    callbacks: list[Any] = [] if trainer is None else trainer.callbacks  # type: ignore[attr-defined]
    return any(getattr(callback, "clients_elsewhere", False) for callback in callbacks)


@dataclass(frozen=True)
class PlannedBatches:
    """Tell how a client draws its batches, which is all that the server needs to know.

    Attributes:
        number: the number of batches of an epoch.
        rate: the probability that an example is in a batch.
    """

    number: int
    rate: float

    def __len__(self) -> int:
        return self.number


class RemoteDatasets(ClientSource):
    """Know the clients' names and sizes, and refuse to read their examples.

    Args:
        infos: what the clients tell about themselves, in the order of their ids.
        held: the number of them that are held out, which are the last.
    """

    reason = "The clients' examples are at their sites"

    def __init__(self, infos: Sequence[ClientInfo], held: int = 0) -> None:
        self.infos, unseen = tuple(infos[: len(infos) - held]), infos[len(infos) - held :]
        names = tuple(info.name for info in self.infos)
        sizes = zip(*((info.num_examples, info.num_validation, info.num_test) for info in self.infos), strict=True)
        training, validation, test = (Sizes(each, names) if any(each) else None for each in sizes)
        assert training is not None
        tested = Sizes([info.num_test for info in unseen], tuple(info.name for info in unseen)) if held else None
        self.splits = ClientSplits(training, validation, test, unseen=tested)

    def size_is_unknown(self, client: int) -> bool:
        """Return whether a client trains on a stream without a length."""
        return self.infos[client].streams

    def label_counts(self) -> Tensor:
        """Return the clients' label counts, int64, shape (K, C).

        Raises:
            DataError: if a client does not tell them.
        """
        silent = [info.name for info in self.infos if info.label_counts is None]
        if silent:
            raise DataError(
                f"No label counts from: {', '.join(silent)}. If their staff agrees, they add 'label_counts' to 'policy.tells' "
                "in data.yaml."
            )
        return pad_sequence([torch.tensor(info.label_counts) for info in self.infos], batch_first=True)

    def input_moments(self, client: int) -> Moments:
        """Return the sums that a client has told.

        Raises:
            ConfigurationError: if it does not tell them.
        """
        info = self.infos[client]
        if not info.moments:
            raise _untold(info)
        return Moments.of_texts(info.moments)

    def require_sums(self) -> None:
        """Refuse a client that does not tell the sums of its inputs, also not in a sum over all clients.

        Raises:
            ConfigurationError: naming it.
        """
        for info in self.infos:
            if info.num_examples and info.moments is None:
                raise _untold(info)

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PlannedBatches:  # type: ignore[override]
        """Return how a client draws its batches.

        Raises:
            ConfigurationError: if it does not tell it.
        """
        info = self.infos[client]
        if info.sampling is None:
            raise ConfigurationError(
                f"Noise in each step needs examples that are drawn for themselves, but site {info.name} trains on a stream, or "
                "its loader draws its own batches, or 'policy.tells' of its data.yaml has no examples. Change that there."
            )
        return PlannedBatches(1, 1.0) if full_batch else PlannedBatches(*info.sampling)


def _untold(info: ClientInfo) -> ConfigurationError:
    return ConfigurationError(
        f"Standardized and 'federation_report.features' need sums of all clients, but site {info.name} does not tell the sums "
        "of its inputs. If its staff agrees, they add 'statistics' to 'policy.tells' in data.yaml; it tells none with noise, "
        "none over fewer than 'policy.min_rows' numbers, and none by themselves if nothing but its part of a sum leaves it. "
        "Or leave out both, and scale by public numbers."
    )
