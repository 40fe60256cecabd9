"""Find clients whose data BatchNorm cannot train on."""

from __future__ import annotations

from torch import nn

from fl_lightning.compat.torch import is_batch_norm
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import DataError


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
