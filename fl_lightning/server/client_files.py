"""Delete files of client state that are no longer needed."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from fl_lightning.clients.client_files import References
from fl_lightning.clients.memory import ClientMemory, references_of
from fl_lightning.plugins.checkpoint_io import checkpoint_folders
from fl_lightning.utilities.collectives import Collectives

_SUFFIX = ".ckpt"


def sweep_client_files(trainer: Trainer, memory: ClientMemory) -> None:
    """Delete files, between rounds, to which neither the round nor a checkpoint in the Trainer's folders refers.

    Rank 0 deletes while the others wait, because it would not know the files that they write in the next round. A checkpoint
    that cannot be read may refer to any file, so then nothing is deleted.
    """
    if memory.files.used:
        memory.files.sweep(Collectives(trainer), _checkpoints(trainer) if trainer.is_global_zero else None)


def _checkpoints(trainer: Trainer) -> dict[Hashable, References] | None:
    """Return the files to which each checkpoint refers; None if one cannot be read."""
    try:
        paths = [path for folder in checkpoint_folders(trainer) for path in folder.glob(f"*{_SUFFIX}")]
        stats = [(path, path.stat()) for path in paths]
        return {(key := (path, stat.st_mtime_ns, stat.st_size)): _references(*key) for path, stat in stats}
    except Exception:
        return None


@lru_cache(maxsize=10_000)
def _references(path: Path, time: int, size: int) -> References:
    """Return the files to which a checkpoint refers, which is read once for each time and size."""
    checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    states = [state for state in checkpoint.get("callbacks", {}).values() if isinstance(state, dict)]
    return references_of(next((state["memory"] for state in states if "memory" in state), {}))
