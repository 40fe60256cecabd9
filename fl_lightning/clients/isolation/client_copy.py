"""Copy the user's module for the clients."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from fl_lightning.clients.isolation.rebinding import rebound_copy
from fl_lightning.compat.jsonargparse import is_parsed_factory
from fl_lightning.compat.lightning import forget_compiled, forget_metric_names, is_compiled
from fl_lightning.errors import ConfigurationError


def _copied(generator: torch.Generator) -> torch.Generator:
    own = torch.Generator(generator.device)
    own.set_state(generator.get_state())
    return own


def _with_uncopied(module: LightningModule, known: dict[int, Any]) -> dict[int, Any]:
    """Return the objects that copies share: the known ones, and attributes that cannot be copied, which a warning names."""
    memo = dict(known)
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_") or isinstance(value, nn.Module | Tensor) or id(value) in memo:
                continue
            try:
                copy.deepcopy(value, dict(memo))
            except Exception as error:
                memo[id(value)] = value
                path = f"{prefix}.{name}".lstrip(".")
                rank_zero_warn(
                    f"'{path}' of {type(module).__name__} cannot be copied for the clients ({error}), so all "
                    "clients share it. Create it in 'on_train_start' if it must not be shared."
                )
    return memo


def client_copy(module: LightningModule) -> LightningModule:
    """Return a copy of the user's module for the clients.

    Raises:
        ConfigurationError: if the module cannot be copied.
    """
    # The command line builds optimizers as partials that hold the parser's state: share them instead of copying them.
    shared = {id(value): value for value in vars(module).values() if is_parsed_factory(value)}
    generators = [v for part in module.modules() for v in vars(part).values() if isinstance(v, torch.Generator)]
    shared |= {id(generator): _copied(generator) for generator in generators}
    # Outputs that a module keeps, which have a history in autograd, cannot be copied with it.
    outputs = [v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor) and v.grad_fn is not None]
    shared |= {id(output): output.detach().clone() for output in outputs}
    try:
        try:
            client = rebound_copy(module, shared)
        except Exception:
            client = rebound_copy(module, _with_uncopied(module, shared))
    except Exception as error:
        raise ConfigurationError(
            f"Cannot copy {type(module).__name__} for the clients (copy.deepcopy: {error}). Do not store locks, open files or "
            "generators in its attributes, or create them in 'on_train_start'."
        ) from error
    spoilt = next((name for name, parameter in client.named_parameters() if not parameter.is_leaf), None)
    if spoilt is not None:
        raise ConfigurationError(
            f"Cannot copy '{spoilt}' of {type(module).__name__} for the clients, because its copy is not a leaf of autograd, "
            "as in parts that torch.jit.script has made. Train the original part, and script the trained module."
        )
    if is_compiled(client):  # the compiled call on the instance still runs the original
        forget_compiled(client)
    forget_metric_names(client)
    vars(client)["configure_callbacks"] = list  # the module's callbacks belong to the federation, not to each client
    return client
