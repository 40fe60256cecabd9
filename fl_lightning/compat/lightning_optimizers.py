"""Private names of Lightning for what ``configure_optimizers`` returns, and for its wrapper of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lightning.fabric.utilities.types import Optimizable
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fl_lightning.compat.private import Private

__all__ = ["OffersOptimizers", "configured", "configured_parts", "stepping_through"]

_HOME = "lightning.pytorch.core.optimizer"
_PARTS = Private("lightning", _HOME, "_configure_optimizers", "reads what 'configure_optimizers' returns itself")
_CONFIGS = Private("lightning", _HOME, "_configure_schedulers_automatic_opt", "reads the settings of schedulers itself")
_CHECK = Private("lightning", _HOME, "_validate_scheduler_api", "checks the kind of schedulers itself")
_OFFERED = Private(
    "lightning", "lightning.pytorch.strategies.Strategy", "_lightning_optimizers", "answers any private look-up of optimizers"
)


def configured_parts(answer: Any) -> tuple[list[Optimizer], list[Any], str | None]:
    """Return the optimizers, schedulers and monitor in what ``configure_optimizers`` returned; only a Trainer can read it."""
    optimizers, schedulers, monitor = _PARTS.get(_read)(answer)
    return optimizers, schedulers, monitor


def configured(answer: Any, module: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """Return the optimizers and the schedulers' configurations in what ``configure_optimizers`` returned, and check them.

    Stands in for a Trainer, the only one that can do so in public.

    Args:
        answer: what the method returned.
        module: whose method it is; optimizes automatically.
    """
    optimizers, schedulers, monitor = configured_parts(answer)
    configs: list[Any] = _CONFIGS.get(_read_schedulers)(schedulers, monitor)
    _CHECK.get(_check)(configs, module)
    return optimizers, configs


def _read(answer: Any) -> tuple[list[Any], list[Any], str | None]:
    """Read the forms of an answer that Lightning documents."""
    if isinstance(answer, Optimizable):
        return [answer], [], None
    if isinstance(answer, Mapping):
        return [answer["optimizer"]], [answer["lr_scheduler"]] if "lr_scheduler" in answer else [], answer.get("monitor")
    if isinstance(answer, list | tuple):
        if len(answer) == 2 and isinstance(answer[0], list) and all(isinstance(one, Optimizable) for one in answer[0]):
            return answer[0], answer[1] if isinstance(answer[1], list) else [answer[1]], None
        if all(isinstance(one, Mapping) for one in answer):
            schedulers = [one["lr_scheduler"] for one in answer if "lr_scheduler" in one]
            return (
                [one["optimizer"] for one in answer],
                [dict(one) if isinstance(one, Mapping) else {"scheduler": one} for one in schedulers],
                None,
            )
        if all(isinstance(one, Optimizable) for one in answer):
            return list(answer), [], None
    raise MisconfigurationException(
        f"'configure_optimizers' returns {answer!r}. Return an optimizer, a list of optimizers, a list of optimizers and one "
        "of schedulers, or a dictionary with 'optimizer' and 'lr_scheduler'."
    )


def _read_schedulers(schedulers: list[Any], monitor: str | None) -> list[Any]:
    """Return the settings of schedulers, with Lightning's defaults."""
    known, configs = {field.name for field in fields(LRSchedulerConfig)}, []
    for scheduler in schedulers:
        if isinstance(scheduler, Mapping):
            given = {name: value for name, value in scheduler.items() if name in known}
            if "scheduler" not in given or given.get("interval", "epoch") not in ("step", "epoch"):
                raise MisconfigurationException(
                    f"The settings of a scheduler are {scheduler}. Set 'scheduler', and 'interval' to 'step' or 'epoch'."
                )
        else:
            given = {"scheduler": scheduler, "monitor": monitor}
        given.setdefault("reduce_on_plateau", isinstance(given["scheduler"], ReduceLROnPlateau))
        if given["reduce_on_plateau"] and given.get("monitor") is None:
            raise MisconfigurationException("ReduceLROnPlateau needs a metric. Set 'monitor' in 'configure_optimizers'.")
        if not given["reduce_on_plateau"] and not isinstance(scheduler, Mapping):
            given["monitor"] = None
        configs.append(LRSchedulerConfig(**given))
    return configs


def _check(configs: list[Any], module: LightningModule) -> None:
    for config in configs:
        kind = type(config.scheduler)
        if not (hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")):
            raise TypeError(f"{kind.__name__} is no scheduler: it has no 'state_dict' and 'load_state_dict'.")
        if not isinstance(config.scheduler, LRScheduler | ReduceLROnPlateau) and not is_overridden("lr_scheduler_step", module):
            raise MisconfigurationException(f"{kind.__name__} is not an LRScheduler of torch. Override 'lr_scheduler_step'.")


class _Stepping(LightningOptimizer):
    """Wrap an optimizer, with another one to make its steps."""

    stepper: Any = None

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Let the other one make a step."""
        return self.stepper.optimizer_step(self.optimizer, closure or (lambda: None), **kwargs)


def stepping_through(optimizer: Optimizer, strategy: Any) -> Any:
    """Wrap an optimizer as for a module's ``optimizer_step``; only a Trainer's strategy can be wrapped in public.

    Args:
        optimizer: any.
        strategy: whose ``optimizer_step(optimizer, closure, **kwargs)`` runs when the wrapper is told to step.
    """
    wrapped = _Stepping(optimizer)
    wrapped.stepper = strategy
    return wrapped


class OffersOptimizers:
    """Answer a module's ``self.optimizers()`` in place of a Trainer's strategy, which has no public name for it."""

    def wrapped_optimizers(self) -> list[LightningOptimizer]:
        """Return the optimizers of the fit, each in Lightning's wrapper."""
        raise NotImplementedError

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        return self.wrapped_optimizers()

    @staticmethod
    def asks_for_optimizers(name: str) -> bool:
        """Return whether an attribute that does not exist may be the one that Lightning looks up."""
        found = name.startswith("_") and name.endswith("optimizers")
        if found:
            _OFFERED.tell()
        return found
