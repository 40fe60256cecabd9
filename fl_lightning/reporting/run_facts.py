"""Describe what a run used besides its settings: sizes of the sets and of the network, the device, the versions."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer

FILE = "run.json"
"""The file in a run's folder."""
SELECTION, TEST_SET = "selection", "test set"
"""The fact of which set the server validates on, if there is a test set, and its value if it is that one."""


def write_run_facts(trainer: Trainer, module: LightningModule, folder: Path) -> None:
    """Write the facts of a fit that begins, by name."""
    (folder / FILE).write_text(json.dumps(run_facts(trainer, module), indent=2) + "\n", encoding="utf-8")


def read_run_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a run; empty for one of an earlier release."""
    path = folder / FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def run_facts(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Return the facts of a fit after its data have been loaded; unknown ones are left out."""
    data: Any = getattr(trainer, "datamodule", None)
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    whole = sum(parameter.numel() for parameter in module.parameters())
    validates, tests = _loaders(trainer.val_dataloaders), _test_loaders(data)
    same = bool(validates and tests) and _contents(validates[0]) == _contents(tests[0])
    found = {
        SELECTION: TEST_SET if same else "validation set" if validates and tests else "",
        "parameters": f"{whole:,}" + (f", of which {trained:,} are trained" if trained != whole else ""),
        "data": str(getattr(data, "origin", "")),
        "examples": _examples(data, validates, [] if same else tests),
        "validated on": str(getattr(data, "validated_on", "")).partition(", as papers")[0],
        "precision": str(trainer.precision),
        "device": _device(module),
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, lightning {lightning.__version__}",
    }
    return {name: text for name, text in found.items() if text}


def _examples(data: Any, validates: list[Any], tests: list[Any]) -> str:
    parts = []
    division = getattr(data, "splits", None)
    if division is not None:
        for name in ("training", "validation", "test"):
            own = getattr(division, name)
            if own is not None:
                parts.append(f"{int(own.sizes.sum()):,} {name} at {len(own)} clients")
    for name, loaders in (("validation", validates), ("test", tests)):
        sizes = [_size(loader) for loader in loaders]
        if sizes and None not in sizes:
            parts.append(f"{sum(size or 0 for size in sizes):,} {name} at the server")
    return ", ".join(parts)


def _test_loaders(data: Any) -> list[Any]:
    """Return the loaders of a test set; none if there is no test set, or only ``setup('test')`` reads it."""
    try:
        return _loaders(data.test_dataloader())
    except Exception:  # whatever a user's datamodule raises before its set-up
        return []


def _contents(loader: Any) -> Any:
    """Return what tells whether two loaders read the same examples in memory."""
    dataset: Any = getattr(loader, "dataset", loader)
    tensors = getattr(dataset, "tensors", None)
    return [tensor.data_ptr() for tensor in tensors] if tensors else id(dataset)


def _loaders(loaders: Any) -> list[Any]:
    if loaders is None:
        return []
    return list(loaders.values()) if isinstance(loaders, dict) else loaders if isinstance(loaders, list) else [loaders]


def _size(loader: Any) -> int | None:
    size: Any = getattr(loader, "num_examples", None)
    dataset: Any = getattr(loader, "dataset", None)
    return size if isinstance(size, int) else len(dataset) if hasattr(dataset, "__len__") else None


def _device(module: LightningModule) -> str:
    if module.device.type == "cuda":
        return torch.cuda.get_device_name(module.device)
    return f"CPU ({platform.machine()})" if module.device.type == "cpu" else module.device.type
