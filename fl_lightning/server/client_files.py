"""Delete files of client state that are no longer needed."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch import Trainer

from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.superseded import References
from fl_lightning.plugins.checkpoint_io import checkpoint_folders
from fl_lightning.utilities.collectives import Collectives

_SUFFIX = ".ckpt"
_Version = tuple[Path, int, int]
_read: dict[_Version, list[References]] = {}


def sweep_client_files(trainer: Trainer, memory: ClientMemory) -> None:
    """Delete files, between rounds, to which neither the round nor a checkpoint in the Trainer's folders refers.

    Rank 0 deletes while the others wait, because it would not know the files that they write in the next round. A checkpoint
    that cannot be read may refer to any file, so then nothing is deleted.
    """
    if not memory.has_files:
        return
    if trainer.is_global_zero:
        _sweep(trainer, memory)
    older_bytes = Collectives(trainer).gather(memory.older_bytes)[0]
    if not trainer.is_global_zero:
        memory.end_sweep(older_bytes)


def _sweep(trainer: Trainer, memory: ClientMemory) -> None:
    paths = [path for folder in checkpoint_folders(trainer) for path in folder.glob(f"*{_SUFFIX}")]
    try:
        found = {version: _references(version, memory) for version in map(_version, paths)}
    except Exception:
        return
    _read.clear()
    _read.update(found)
    memory.sweep({(version, number): one for version, several in found.items() for number, one in enumerate(several)})


def _version(path: Path) -> _Version:
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


def _references(version: _Version, memory: ClientMemory) -> list[References]:
    if version in _read:
        return _read[version]
    checkpoint = torch.load(version[0], map_location="cpu", mmap=True, weights_only=True)
    states = [state for state in checkpoint.get("callbacks", {}).values() if isinstance(state, dict)]
    return [memory.references(state["memory"]) for state in states if "memory" in state]
