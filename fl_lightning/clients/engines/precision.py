"""Make Fabric's precision behave like that of a Lightning Trainer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment

from fl_lightning.clients.training.inner_trainer import ACCELERATORS, quiet


class _Mixed(MixedPrecision):
    """Leave inputs as they are, and cache no cast weights.

    Fabric casts inputs, but a Trainer does not. Fabric's autocast caches cast weights until the outermost context ends,
    which is the whole round here, so they would be stale.
    """

    def convert_input(self, data: Any) -> Any:
        """Return the inputs unchanged, and leave the casting to autocast."""
        return data

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return an autocast context without a cache."""
        dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.half
        return torch.autocast(self.device, dtype=dtype, cache_enabled=False)


def fabric_precision(precision: str, device: torch.device) -> Any:
    """Return Fabric's plugin for one of a Trainer's precisions, on one device."""
    kind = ACCELERATORS.get(device.type, device.type)
    devices: Any = [device.index or 0] if kind == "gpu" else 1
    plugins: list[Any] = [LightningEnvironment()]
    settings: Any = precision
    if precision in ("16-mixed", "bf16-mixed"):
        if kind == "cpu":
            precision = "bf16-mixed"  # as a Trainer does
        mixed: Any = precision
        plugins.append(_Mixed(mixed, device.type))
        settings = None
    with quiet():
        return Fabric(accelerator=kind, devices=devices, precision=settings, plugins=plugins).strategy.precision
