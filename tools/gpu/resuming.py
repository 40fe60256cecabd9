"""Checkpoints: from the CPU to the device and back, and resumed runs to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from algorithms import prepare
from federations import every_round, trainer, weights
from torch import nn

from fl_lightning import (
    AdaFed,
    ClassificationTask,
    F1WeightedCrossEntropy,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LocalTraining,
    RandomCropFlip,
)
from gpu.setting import Findings, Setting, equal_bits, largest_difference
from gpu.state_on_device import Pictures

_STATEFUL = ("fedadam", "scaffold", "fedavgm", "compressed", "local only")
"""Algorithms whose server or clients keep something over rounds."""


def checkpoint_moves(setting: Setting, found: Findings) -> None:
    """Two rounds on the CPU, two on the device, one on the CPU, resumed each time: as five on the CPU, within rounding."""
    gaps = {}
    for name in _STATEFUL[: setting.of(5, 2)]:
        folder = Path(name)
        for rounds, accelerator in ((2, "cpu"), (4, setting.accelerator), (5, "cpu")):
            try:
                moved, steps = _algorithm(name, rounds, accelerator, folder)
            except Exception as error:
                found.require(False, f"{name}, round {rounds}, {accelerator}: {type(error).__name__}: {str(error)[:200]}")
                break
            found.require(steps == rounds, f"{name}: {steps} rounds instead of {rounds}")
        else:
            gaps[name] = largest_difference(_algorithm(name, 5, "cpu", None)[0], moved)
            found.require(gaps[name] < 1e-2, f"{name}: {gaps[name]:.2g} from a run that stayed on the CPU")
    found["largest_differences"] = gaps
    found["precision auto"] = _moved_with_defaults(setting)


def _algorithm(name: str, rounds: int, accelerator: str, folder: Path | None, precision: Any = "32-true") -> tuple[Any, int]:
    module, data, federation = prepare(name)
    federation.local = replace(federation.local, precision=precision)
    callbacks, flags, start = [], {}, None
    if folder is not None:
        start = str(folder / "last.ckpt") if (folder / "last.ckpt").exists() else None
        callbacks, flags = [every_round(folder)], {"enable_checkpointing": True, "default_root_dir": str(folder)}
    run = trainer(rounds, federation, *callbacks, accelerator=accelerator, devices=1, **flags)
    run.fit(module, data, ckpt_path=start)
    return weights(module), run.global_step


def _moved_with_defaults(setting: Setting) -> str:
    """What a user sees who moves a checkpoint and has set no precision, which is another one on a GPU."""
    folder = Path("defaults")
    _algorithm("fedavgm", 1, "cpu", folder, "auto")
    try:
        _algorithm("fedavgm", 2, setting.accelerator, folder, "auto")
    except Exception as error:
        return f"refused: {type(error).__name__}: {error}"
    return "resumed"


RUNS: dict[str, dict[str, Any]] = {
    "trainer, 32-true": {"engine": "trainer", "precision": "32-true"},
    "trainer, 16-mixed": {"engine": "trainer", "precision": "16-mixed"},
    "trainer, bf16-mixed": {"engine": "trainer", "precision": "bf16-mixed"},
    "fabric, 32-true": {"engine": "fabric", "precision": "32-true"},
    "fabric, 16-mixed": {"engine": "fabric", "precision": "16-mixed"},
    "fabric, bf16-mixed": {"engine": "fabric", "precision": "bf16-mixed"},
    "stacked, 32-true": {"engine": "stacked", "precision": "32-true"},
}


def resume_bits(setting: Setting, found: Findings) -> None:
    """Three rounds, three rounds again, and two rounds that are resumed for a third: the same bits, on the same GPU."""
    chosen = list(RUNS) if not setting.small else ["trainer, 32-true", "fabric, 32-true", "stacked, 32-true"]
    results = {}
    for name in chosen:
        folder = Path(name.replace(", ", "_"))
        whole = results[name] = _digits(setting, 3, None, **RUNS[name])
        again = _digits(setting, 3, None, **RUNS[name])
        _digits(setting, 2, folder, **RUNS[name])
        resumed = _digits(setting, 3, folder, **RUNS[name])
        same, resumes = equal_bits(whole, again), equal_bits(whole, resumed)
        found[name] = {"again": same, "resumed": resumes, "largest_difference": largest_difference(whole, resumed)}
        found.require(same, f"{name}: a second run has other bits")
        found.require(resumes, f"{name}: the resumed run has other bits")
    for precision in ("32-true", "16-mixed", "bf16-mixed"):
        if f"fabric, {precision}" in results:
            same = equal_bits(results[f"trainer, {precision}"], results[f"fabric, {precision}"])
            found[f"fabric equals trainer, {precision}"] = same
            found.require(same, f"{precision}: fabric has other bits than trainer")


def _digits(setting: Setting, rounds: int, folder: Path | None, **local: Any) -> dict[str, Any]:
    """AdaFed with class weights, dropout, BatchNorm and augmentation; deterministic algorithms only."""
    L.seed_everything(2, verbose=False)
    net = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.Flatten(), nn.Dropout(0.3)),
        nn.Linear(16 * 16, 10),
    )
    task = ClassificationTask(net, 10, F1WeightedCrossEntropy(10), lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.9))
    data = Pictures(setting.of(600, 60), 100, batch_size=20, augmentation=RandomCropFlip(2))
    federation = FederatedOrchestrator(AdaFed(), LocalTraining(**local), clients_per_round=0.7)
    callbacks, flags, start = [], {}, None
    if folder is not None:
        start = str(folder / "last.ckpt") if (folder / "last.ckpt").exists() else None
        callbacks, flags = [every_round(folder)], {"enable_checkpointing": True, "default_root_dir": str(folder)}
    run = trainer(rounds, federation, *callbacks, accelerator=setting.accelerator, devices=1, deterministic=True, **flags)
    try:
        run.fit(task, FederatedDataModule(data, IIDPartitioner(4)), ckpt_path=start)
    finally:
        torch.use_deterministic_algorithms(False)
    return weights(task)
