"""Describe where and how the clients of a process train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from lightning.pytorch import Trainer

from fl_lightning.core.option import ClientHooks, SitePlace
from fl_lightning.rules.base import ClientRule
from fl_lightning.settings.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class Place:
    """Describe where and how the clients of a process train.

    Attributes:
        local: the settings of the local training.
        precision: the precision, as accepted by Lightning's Trainer.
        device: the device to train on.
        rules: the rules that change the clients' training, in order.
        hooks: the clients' hooks of the options in use, in order.
        deadline: the time limit of a client's training in seconds, checked between steps; None for no limit.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which a module may read some attributes; None at a site.
        inference_mode: whether validation runs in inference mode, without autograd.
        fast_dev_run: whether each client trains on a single batch.
        detect_anomaly: like ``local.detect_anomaly``, but set by the outer Trainer.
        cohort: the largest number of clients in a round; None if it is unknown.
        site: the site, if the clients are not simulated.
        compresses: whether updates are sent over a network, in a compressed form if a transform makes them smaller.
    """

    local: LocalTraining
    precision: str = "32-true"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rules: Sequence[ClientRule] = ()
    hooks: Sequence[ClientHooks] = ()
    deadline: float | None = None
    logger: bool = False
    outer: Trainer | None = None
    inference_mode: bool = True
    fast_dev_run: bool = False
    detect_anomaly: bool = False
    cohort: int | None = None
    site: SitePlace | None = None
    compresses: bool = False
