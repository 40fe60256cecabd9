"""What a machine offers to the runs of a study, and what a run asks for."""

from __future__ import annotations

import os

from jsonargparse import Namespace


def ranks_of(config: Namespace) -> int:
    """Return the number of processes of a run."""
    devices = config.trainer.devices
    return len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdigit() else 1


def gpus() -> list[str]:
    """Return the GPUs that this process may see, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = allowed.split(",") if allowed else [str(k) for k in range(torch.cuda.device_count())]
    return names[: torch.cuda.device_count()]
