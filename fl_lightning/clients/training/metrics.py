"""Keep clients' metrics to themselves, and read what they logged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.compat.torch import parts_of


def keep_metrics_to_this_process(module: LightningModule) -> None:
    """Reset the module's metrics, and stop them from synchronising over the outer process group, which would mix or hang."""
    for part in parts_of(module).values():
        if isinstance(part, Metric):
            part.reset()
            part.distributed_available_fn = _alone


def _alone() -> bool:
    return False


def scalar_metrics(logged: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics that the module logged, as numbers, with a single transfer from the device."""
    names = [name for name in logged if not name.endswith("_step")]
    if not names:
        return {}
    values = torch.stack([logged[name].double().mean() for name in names]).tolist()
    return dict(zip(names, values, strict=True))
