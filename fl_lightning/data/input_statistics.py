"""Measure a client's inputs before round 0, as a module gets them in an evaluation, and find those too few for BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fl_lightning.compat.torch import is_batch_norm
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.errors import DataError
from fl_lightning.functional.exact_moments import Moments, moments_of_batches
from fl_lightning.functional.histograms import Cuts, histograms_of


def input_moments(data: FederatedDataModule, client: int) -> Moments:
    """Return the exact sums of one client's training inputs, and of their squares, for each channel, as float32.

    Inputs are those of an evaluation: after the datamodule's hooks, which find no Trainer, so nothing is augmented. A
    datamodule with a method ``statistics(batches)`` adds them up itself. A client outside this process has told its sums.

    Args:
        data: the datamodule of all clients.
        client: the client's id, from 0.

    Raises:
        ConfigurationError: if such a client does not tell them.
        DataError: if the inputs cannot be measured.
    """
    if isinstance(data.client_datasets, RemoteDatasets):
        return data.client_datasets.input_moments(client)
    own = getattr(data.datamodule, "statistics", None)
    found = (own if callable(own) else moments_of_batches)(_evaluated(data, client))
    if not isinstance(found, Moments):
        raise DataError(
            f"'statistics' of {type(data.datamodule).__name__} returned a {type(found).__name__}. Return what "
            "'fl_lightning.functional.exact_moments.together' or 'moments_of' returns."
        )
    return found


def input_histograms(data: FederatedDataModule, client: int, cuts: Cuts) -> list[list[int]]:
    """Return how many of one client's training examples are in each bin, for each column; none for other inputs.

    Args:
        data: the datamodule of all clients.
        client: the client's id, from 0.
        cuts: the borders between the bins of each column.
    """
    if callable(getattr(data.datamodule, "statistics", None)):
        return [[] for _ in cuts]
    return histograms_of(_evaluated(data, client), cuts)


def _evaluated(data: FederatedDataModule, client: int) -> Iterator[Any]:
    """Yield the batches of one client's training examples as a module gets them in an evaluation.

    Raises:
        DataError: if the client trains on a stream.
    """
    if data.client_datasets.size_is_unknown(client):
        raise DataError(
            f"Client {data.client_name(client)} trains on a stream, whose inputs cannot be measured before training. Leave "
            "out Standardized, and scale by public numbers; or give the client a dataset with a length."
        )
    view, outer = data.client_evaluation_view(client, "training"), data.datamodule.trainer
    data.datamodule.trainer = None  # a simulation must get what a site gets, whatever its Trainer's precision
    try:
        for batch in view.val_dataloader():
            yield view.on_after_batch_transfer(view.on_before_batch_transfer(batch, 0), 0)
    finally:
        data.datamodule.trainer = outer


def check_batch_norm(module: nn.Module, data: FederatedDataModule) -> bool:
    """Refuse a client with a single example if the module trains BatchNorm.

    Returns:
        Whether the module trains BatchNorm, and so must drop a client's last batch if it has a single example.

    Raises:
        DataError: if a client has a single example; it names the client.
    """
    trains = any(is_batch_norm(part) and part.training for part in module.modules())
    sizes = data.indices.sizes + data.splits.public.numel()
    if trains and int(sizes.min()) == 1 and data.client_datasets.whole:  # the sizes of streams are not known yet
        client = int(sizes.argmin())
        raise DataError(
            f"Client {data.client_name(client)} has a single training example, which BatchNorm cannot normalise. Use a "
            "partition with larger clients (most partitioners have 'min_examples'), or a network with GroupNorm."
        )
    return trains
