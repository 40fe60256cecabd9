"""Provide ``self.log`` without a Trainer, with the same values as Lightning's to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.compat.lightning import logging_levels
from fl_lightning.compat.torchmetrics import latest_value
from fl_lightning.errors import ConfigurationError, EngineError

_ALSO: dict[str, tuple[Any, ...]] = {
    "mean": ("avg", torch.mean),
    "max": (torch.max, max),
    "min": (torch.min, min),
    "sum": (torch.sum, sum),
}
_REDUCTIONS: dict[Any, str] = {key: name for name, keys in _ALSO.items() for key in (name, *keys)}

_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"max": torch.maximum, "min": torch.minimum, "sum": torch.add}


def _dtype() -> torch.dtype:
    """Return the dtype of logged values, which is at least float32 for any precision."""
    default = torch.get_default_dtype()
    return default if default in (torch.float32, torch.float64) else torch.float32


@dataclass
class _Entry:
    """Collect the values logged under one name in one hook during an epoch."""

    reduction: str
    on_step: bool
    values: list[tuple[Tensor, int]] = field(default_factory=list)
    metric: Metric | None = None

    def compute(self) -> Tensor:
        """Return the epoch's value, summed in the order of the steps, as in Lightning."""
        if self.metric is not None:
            value: Tensor = self.metric.compute()
            return value
        if self.reduction == "mean":
            total = torch.zeros((), device=self.values[0][0].device, dtype=_dtype())
            for value, size in self.values:
                total = total + value * size
            return total / torch.tensor(sum(size for _, size in self.values), device=total.device)
        result = self.values[0][0]
        for value, _ in self.values[1:]:
            result = _PAIRWISE[self.reduction](result, value)
        return result


class LogRecorder:
    """Replace a module's ``log`` during one fit.

    Attributes:
        hook: the current hook, which determines whether a value is logged for the step or the epoch.
        batch: the batch of the current step.
        metrics: the metrics by name, as in a Trainer's ``callback_metrics``.
    """

    def __init__(self, device: torch.device, metrics: dict[str, Tensor]) -> None:
        self.hook = "training_step"
        self.batch: Any = None
        self.metrics, self._device = metrics, device
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._seen: list[Metric] = []

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value, like :meth:`lightning.pytorch.LightningModule.log`, without progress bar, logger and other ranks.

        Raises:
            EngineError: for a custom reduction.
        """
        on_step, on_epoch = logging_levels(self.hook, on_step, on_epoch)
        reduction = _REDUCTIONS.get(reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx)
        if reduction is None:
            raise EngineError(
                f"'{name}' is logged with the reduction {reduce_fx!r}, but this engine supports only mean, min, max and sum. "
                "Use one of them, or set 'federation.local.engine' to 'trainer'."
            )
        if not isinstance(value, Metric):
            value = self._as_tensor(name, value)
        else:
            self._seen.append(value)
        if on_step:
            latest: Any = latest_value(value) if isinstance(value, Metric) else value
            self.metrics[name] = latest
            if on_epoch:
                self.metrics[f"{name}_step"] = latest
        if not on_epoch:
            return
        entry = self._entries.setdefault((self.hook, name), _Entry(reduction, on_step))
        if isinstance(value, Metric):
            entry.metric = value
            return
        if reduction == "mean" and batch_size is None and self.batch is not None:
            batch_size = extract_batch_size(self.batch)
        entry.values.append((value, batch_size or 1))

    def _as_tensor(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            return torch.tensor(value, device=self._device, dtype=_dtype())
        if value.numel() != 1:
            raise ConfigurationError(f"'{name}' is logged as {value.numel()} numbers. Log a single one, such as their mean.")
        own = value.detach().clone().squeeze()
        return own if own.dtype in (torch.float32, torch.float64) else own.to(_dtype())

    def compute(self) -> None:
        """Compute the epoch's metrics so far."""
        for (_, name), entry in self._entries.items():
            self.metrics[name] = entry.compute()
            if entry.on_step:
                self.metrics[f"{name}_epoch"] = self.metrics[name]

    def reset(self) -> None:
        """End the epoch: discard its values, and reset its metrics."""
        for metric in self._seen:
            metric.reset()
        self._seen = []
        self._entries = {}
