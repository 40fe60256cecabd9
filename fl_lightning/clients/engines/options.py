"""What every engine is told about where and how it runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EngineOptions:
    """Hold the outer Trainer's decisions about the clients' training.

    Attributes:
        precision: as Lightning's Trainer takes it.
        device: where the clients train.
        fast_dev_run: let each client train on one batch only.
        logger: whether the module finds a (silent) logger.
        detect_anomaly: as ``local.detect_anomaly``, for whom the outer Trainer sets it.
        cohort: how many clients a round has at most; None where that is not known.
    """

    precision: str
    device: torch.device
    fast_dev_run: bool = False
    logger: bool = False
    detect_anomaly: bool = False
    cohort: int | None = None
