"""Private names of Lightning's modules and loggers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import WandbLogger
from torchmetrics import Metric

from fl_lightning.compat.private import MISSING, Private

__all__ = ["class_only", "forget_compiled", "forget_metric_names", "is_compiled", "wandb_run", "wandb_settings"]

_MODULE = "lightning.pytorch.LightningModule"
_COMPILED = Private("lightning", _MODULE, "_compiler_ctx", "takes a module with its own 'forward' for a compiled one")
_METRICS = Private("lightning", _MODULE, "_metric_attributes", "looks for the names of metrics among the module's attributes")
_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def is_compiled(module: LightningModule) -> bool:
    """Return whether ``torch.compile`` replaced methods on a module; Lightning's ``to_uncompiled`` tells only by an error."""
    found: Any = _COMPILED.get(MISSING, module)
    return "forward" in vars(module) if found is MISSING else found is not None


def forget_compiled(module: LightningModule) -> None:
    """Undo ``torch.compile`` on the copy of a module; ``to_uncompiled`` would give it the original's methods."""
    if _COMPILED.exists(module):
        module._compiler_ctx = None
    for name in _METHODS:
        vars(module).pop(name, None)


def forget_metric_names(module: LightningModule) -> None:
    """Let the copy of a module find its metrics' names anew: Lightning keeps them by the ids of the original's metrics."""
    if _METRICS.exists(module):
        module._metric_attributes = None
        return
    names = {name for name, part in module.named_modules() if isinstance(part, Metric)}
    for attribute, value in list(vars(module).items()):
        if isinstance(value, dict) and value and all(isinstance(key, int) and one in names for key, one in value.items()):
            setattr(module, attribute, None)


if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):  # noqa: N801
        """Refuse a method of a class on an instance, where 'load_from_checkpoint' would lose its result."""

        def __get__(self, instance, owner=None):
            """Return the method of the class; if it was asked for on an instance, one that refuses to be called."""
            kind = type(instance) if owner is None else owner
            method = super().__get__(None, kind)
            if instance is None:
                return method

            @functools.wraps(method)
            def refused(*args, **kwargs):
                raise TypeError(
                    f"The classmethod `{kind.__name__}.{method.__name__}` cannot be called on an instance. "
                    "Call it on the class, and use what it returns."
                )

            return refused


_LOGGER = "lightning.pytorch.loggers.WandbLogger"
_RUN = Private("lightning", _LOGGER, "_experiment", "takes W&B's active run for the logger's")
_INIT = Private("lightning", _LOGGER, "_wandb_init", "leaves the settings of a W&B run as Lightning makes them")


def wandb_run(logger: WandbLogger) -> Any:
    """Return a logger's run if it has begun; the public ``experiment`` begins one."""
    found: Any = _RUN.get(MISSING, logger)
    if found is MISSING:
        import wandb  # slow to import

        return wandb.run
    return None if found is None else logger.experiment


def wandb_settings(logger: WandbLogger) -> dict[str, Any]:
    """Return what a logger will pass to ``wandb.init``, to be changed in place; it shows that only through its run."""
    settings: dict[str, Any] = _INIT.get({}, logger)
    return settings
