"""The clients' copy of the user's module."""

from __future__ import annotations

import copy

from lightning.pytorch import LightningModule

from fl_lightning.clients.session import keep_metrics_to_this_process
from fl_lightning.compat.jsonargparse import is_parsed_factory
from fl_lightning.compat.lightning import forget_compiled, forget_metric_names, is_compiled
from fl_lightning.errors import ConfigurationError


def client_copy(module: LightningModule) -> LightningModule:
    """A copy of the user's module for the clients, whose metrics never synchronise over the outer process group.

    Raises:
        ConfigurationError: if the module cannot be copied.
    """
    # What the command line builds for an optimizer is a partial that holds the parser's state: shared, not copied.
    factories = [value for value in vars(module).values() if is_parsed_factory(value)]
    try:
        client = copy.deepcopy(module, {id(factory): factory for factory in factories})
    except Exception as error:
        raise ConfigurationError(
            f"{type(module).__name__} cannot be copied for the clients (copy.deepcopy: {error}). Keep locks, open files and "
            "generators out of its attributes, or build them in 'on_train_start'."
        ) from error
    if is_compiled(client):  # what torch.compile put on the instance runs the original
        forget_compiled(client)
    forget_metric_names(client)
    keep_metrics_to_this_process(client)
    vars(client)["configure_callbacks"] = list  # callbacks of the module belong to the federation, not to each client
    return client
