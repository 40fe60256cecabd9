"""Delete files of client state that are no longer needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.stored_state import stored_files
from fl_lightning.plugins.checkpoint_io import checkpoint_folders
from fl_lightning.utilities.collectives import Collectives

_SUFFIX = ".ckpt"
_read: dict[Path, tuple[tuple[int, int], set[str]]] = {}


def sweep_client_files(trainer: Trainer, memory: ClientMemory) -> None:
    """Delete files, between rounds, to which neither the round nor a checkpoint in the Trainer's folders refers.

    Rank 0 deletes while the others wait, because it would not know the files that they write in the next round. A checkpoint
    that cannot be read may refer to any file, so then nothing is deleted.
    """
    if not memory.has_files:
        return
    if trainer.is_global_zero:
        _sweep(trainer, memory)
    Collectives(trainer).gather(None)


def _sweep(trainer: Trainer, memory: ClientMemory) -> None:
    needed: set[str] = set()
    for path in (path for folder in checkpoint_folders(trainer) for path in folder.glob(f"*{_SUFFIX}")):
        files = _referred(path)
        if files is None:
            return
        needed |= files
    memory.sweep(needed)


def _referred(path: Path) -> set[str] | None:
    try:
        status = path.stat()
        version = (status.st_mtime_ns, status.st_size)
        if path not in _read or _read[path][0] != version:
            checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            _read[path] = version, _files_of(checkpoint)
    except Exception:
        return None
    return _read[path][1]


def _files_of(checkpoint: dict[str, Any]) -> set[str]:
    states = [state for state in checkpoint.get("callbacks", {}).values() if isinstance(state, dict)]
    return {file for state in states for file in stored_files(state.get("memory", {}))}
