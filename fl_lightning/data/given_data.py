"""Check what a :class:`~fl_lightning.FederatedDataModule` is given."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from fl_lightning.data.client_holder import ClientHolder
from fl_lightning.data.client_sets import ClientSets, OwnSets
from fl_lightning.data.client_sources import OTHER_PACKAGE
from fl_lightning.data.lazy_clients import LazyClients
from fl_lightning.errors import ConfigurationError, require, require_texts
from fl_lightning.partitioners.base import Partitioner


def data_and_partitioner(
    datamodule: LightningDataModule | None, partitioner: Partitioner | None, clients: dict[str, LightningDataModule] | None
) -> tuple[LightningDataModule, Partitioner | None]:
    """Return the data and their division, from either way to give them; clients that are elsewhere need no division.

    Raises:
        ConfigurationError: if both ways or neither is used, or the data are not a datamodule.
    """
    if clients is not None:
        given = "datamodule" if datamodule is not None else "partitioner"
        both = datamodule is not None or partitioner is not None
        name = type(datamodule or partitioner).__name__
        require(not both, f"data.{given}", "null with 'data.clients', whose data are not divided", name)
        require_texts("data.clients", clients)
        datamodule = ClientSets(clients)
        partitioner = OwnSets(datamodule)
    if isinstance(datamodule, ClientSets):
        _refuse_federations(datamodule)
    if isinstance(datamodule, LazyClients):
        require(
            partitioner is None, "data.partitioner", "null with LazyClients, whose examples have a client already", partitioner
        )
    if datamodule is None:
        raise missing("datamodule")
    if not isinstance(datamodule, LightningDataModule):
        raise ConfigurationError(_not_a_datamodule(datamodule))
    return datamodule, partitioner


def _refuse_federations(sets: ClientSets) -> None:
    for name, source in sets.clients.items():
        if isinstance(source, LazyClients | ClientHolder):
            raise ConfigurationError(
                f"Client '{name}' is a {type(source).__name__}, which holds many clients itself, so it cannot be one of them. "
                "Give it as 'data.datamodule' or to the Trainer, or give this client a datamodule of its own examples."
            )


def missing(name: str) -> ConfigurationError:
    """Return the error for data, or for their division, that are not given."""
    return ConfigurationError(
        f"'data.{name}' is missing. Set it, or give each client data of its own with 'data.clients'. A complete "
        "configuration: fl-lightning fit --config adafed_mnist."
    )


def _not_a_datamodule(given: object) -> str:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    if any(base.__module__.startswith("pytorch_lightning.") for base in type(given).__mro__):
        remedy = OTHER_PACKAGE
    elif isinstance(given, type) and issubclass(given, LightningDataModule):
        return f"'data.datamodule' must be a LightningDataModule, but is the class {given.__name__}. Write {given.__name__}()."
    elif isinstance(given, DataLoader):
        remedy = "Write FederatedDataModule.from_loaders(train_loader, val_loader, partitioner=IIDPartitioner(10))."
    else:
        remedy = "Give one, or write FederatedDataModule.from_loaders or FederatedDataModule.from_clients."
    return f"'data.datamodule' must be a LightningDataModule, but is a {kind}. {remedy}"
