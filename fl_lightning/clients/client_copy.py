"""The clients' copy of the user's module."""

from __future__ import annotations

import copy
import functools

from lightning.pytorch import LightningModule

from fl_lightning.clients.session import keep_metrics_to_this_process
from fl_lightning.errors import ConfigurationError


def client_copy(module: LightningModule) -> LightningModule:
    """A copy of the user's module for the clients, whose metrics never synchronise over the outer process group.

    Raises:
        ConfigurationError: if the module cannot be copied.
    """
    # What the command line builds for an optimizer is a partial that holds the parser's state: shared, not copied.
    factories = [value for value in vars(module).values() if _is_parsed_factory(value)]
    try:
        client = copy.deepcopy(module, {id(factory): factory for factory in factories})
    except Exception as error:
        raise ConfigurationError(
            f"{type(module).__name__} cannot be copied for the clients (copy.deepcopy: {error}). Keep locks, open files and "
            "generators out of its attributes, or build them in 'on_train_start'."
        ) from error
    if getattr(client, "_compiler_ctx", None) is not None:  # what torch.compile put on the instance runs the original
        client._compiler_ctx = None
        for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
            vars(client).pop(name, None)
    client._metric_attributes = None  # Lightning caches it by the ids of the original's metrics
    keep_metrics_to_this_process(client)
    vars(client)["configure_callbacks"] = list  # callbacks of the module belong to the federation, not to each client
    return client


def _is_parsed_factory(value: object) -> bool:
    return isinstance(value, functools.partial) and str(getattr(value.func, "__module__", "")).startswith("jsonargparse")
