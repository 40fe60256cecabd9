"""Copy the user's module for the clients."""

from __future__ import annotations

import copy

from lightning.pytorch import LightningModule

from fl_lightning.clients.session import keep_metrics_to_this_process
from fl_lightning.compat.jsonargparse import is_parsed_factory
from fl_lightning.compat.lightning import forget_compiled, forget_metric_names, is_compiled
from fl_lightning.errors import ConfigurationError


def client_copy(module: LightningModule) -> LightningModule:
    """Return a copy of the user's module for the clients, whose metrics never synchronise over the outer process group.

    Raises:
        ConfigurationError: if the module cannot be copied.
    """
    # The command line builds optimizers as partials that hold the parser's state: share them instead of copying them.
    factories = [value for value in vars(module).values() if is_parsed_factory(value)]
    try:
        client = copy.deepcopy(module, {id(factory): factory for factory in factories})
    except Exception as error:
        raise ConfigurationError(
            f"Cannot copy {type(module).__name__} for the clients (copy.deepcopy: {error}). Do not store locks, open files or "
            "generators in its attributes, or create them in 'on_train_start'."
        ) from error
    if is_compiled(client):  # the compiled call on the instance still runs the original
        forget_compiled(client)
    forget_metric_names(client)
    keep_metrics_to_this_process(client)
    vars(client)["configure_callbacks"] = list  # the module's callbacks belong to the federation, not to each client
    return client
