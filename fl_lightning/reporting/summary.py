"""The summary at the end of a run, and its settings as W&B shows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, WandbLogger

from fl_lightning.functional.description import BASE, CLASS, Describer
from fl_lightning.functional.metric_names import is_validation_figure

_FILES = ("checkpoints", "config.yaml", "run.json", "partition.csv")
_OF_A_FEDERATION = ("clients.csv", "client_rounds.csv", "failures.csv")


def final_summary(trainer: Trainer, federated: bool = True) -> list[str]:
    """Return lines for the terminal at the end of a fit: the server's figures, and where everything is.

    Args:
        trainer: the Trainer.
        federated: whether it trained a federation; if not, it trained the module on the examples of all clients.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return ["Ran one round with one batch per client and saved nothing (trainer.fast_dev_run)."]
    figures = {name: float(value) for name, value in trainer.callback_metrics.items() if is_validation_figure(name)}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    folder = Path(trainer.default_root_dir)
    expected = (*_FILES, *_OF_A_FEDERATION) if federated else _FILES
    logs, elsewhere = _logs(trainer.loggers, folder)
    files = [name for name in expected if (folder / name).exists()] + logs
    origin = getattr(getattr(trainer, "datamodule", None), "origin", "")
    what = "Rounds" if federated else "Epochs on the examples of all clients"
    lines = [f"{what}: {trainer.current_epoch}. {shown}".rstrip()]
    lines += [f"Run: {folder} ({', '.join(files)})"] if files else []
    lines += [f"Logs: {', '.join(elsewhere)}"] if elsewhere else []
    lines += [f"Data: {origin}"] if origin else []
    validated_on = _validated_on(getattr(trainer, "datamodule", None))
    return [*lines, f"Validated on {validated_on}."] if validated_on else lines


def _logs(loggers: Sequence[Logger], folder: Path) -> tuple[list[str], list[str]]:
    """Return the folders that loggers write to: those inside the run's folder, relative to it, and the others."""
    inside: dict[str, None] = {}
    outside: dict[str, None] = {}
    for logger in loggers:
        where = logger.save_dir if isinstance(logger, WandbLogger) else logger.log_dir
        path = None if where is None else Path(where).absolute() / ("wandb" if isinstance(logger, WandbLogger) else "")
        if path is None or not path.is_dir():
            continue
        if path.is_relative_to(folder.absolute()):
            inside[str(path.relative_to(folder.absolute()))] = None
        else:
            outside[os.path.relpath(path)] = None
    return list(inside), list(outside)


def _validated_on(data: Any) -> str:
    if getattr(data, "server_set", "") == "clients":
        return "the clients' own test parts together"
    return str(getattr(getattr(data, "datamodule", None), "validated_on", ""))


def run_settings(settings: dict[str, Any], data: Any) -> dict[str, Any]:
    """Return the settings of a run started from Python, in the structure of the command line's configurations.

    Args:
        settings: settings by section, as :class:`~fl_lightning.functional.description.Describer` returns them.
        data: the datamodule; its partitioner is added to the settings.
    """
    found: dict[str, Any] = {name: _configured(node) for name, node in settings.items()}
    for section in ("federation", "data"):
        if section in settings:
            found[section] = found[section].get("init_args", found[section])
    if hasattr(data, "partitioner"):
        partitioner = Describer().describe(data.partitioner, "data.partitioner")
        found["data"] = {**found.get("data", {}), "partitioner": _configured(partitioner)}
    return found


def _configured(node: Any) -> Any:
    """Return a described object as ``class_path`` and ``init_args``; a plain settings object, such as ``local``, as a dict."""
    if isinstance(node, list):
        return [_configured(part) for part in node]
    if not isinstance(node, dict):
        return node
    own = {name: _configured(value) for name, value in node.items() if name not in (CLASS, BASE)}
    if CLASS not in node:
        return own
    module, _, name = node[CLASS].rpartition(".")
    plain = "__dataclass_fields__" in vars(getattr(sys.modules.get(module), name, object))
    return own if plain else {"class_path": node[CLASS], "init_args": own}
