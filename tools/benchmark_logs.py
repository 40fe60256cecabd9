"""What logging costs: 200 rounds of 100 clients with CSV and W&B (offline), its share of the time, and the files it leaves.

python tools/benchmark_logs.py                  # 10 clients a round
python tools/benchmark_logs.py --cohort 100     # all of them, every round
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from benchmark_loop import Clock, Images, Sizes, quiet
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from fl_lightning import (
    ClassificationTask,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationReport,
    LeNet,
    LocalTraining,
    keep_freed_memory,
)

SPENT: dict[str, float] = {}


def timed(logger: Logger, name: str) -> Logger:
    """The same logger, whose calls are counted."""

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                SPENT[name] = SPENT.get(name, 0.0) + time.perf_counter() - begun

        return call

    for method in ("log_metrics", "save"):
        setattr(logger, method, counting(getattr(logger, method)))
    return logger


def size_of(folder: Path) -> float:
    """MB of the files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--engine", default="trainer")
    args = parser.parse_args()
    os.environ["WANDB_SILENT"] = "true"
    keep_freed_memory()
    torch.set_num_threads(1)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        csv, wandb = Path(folder) / "csv", Path(folder) / "wandb"
        wandb.mkdir()
        loggers = [timed(CSVLogger(csv), "CSV"), timed(WandbLogger(save_dir=wandb, offline=True), "W&B")]
        clock = Clock(skipped=1)  # in the first round W&B starts
        callback = FederatedOrchestrator(local=LocalTraining(engine=args.engine), clients_per_round=args.cohort)
        trainer = L.Trainer(
            max_epochs=args.rounds,
            accelerator="cpu",
            callbacks=[callback, clock, FederationReport()],
            logger=loggers,
            default_root_dir=folder,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        data = FederatedDataModule(Images(100 * args.clients, 10, 1_000), Sizes([100] * args.clients))
        started: dict[str, float] = {}
        trainer.callbacks.append(_after_first_round(started))  # type: ignore[attr-defined]
        trainer.fit(ClassificationTask(LeNet(), 10), data)
        loggers[1].experiment.finish()
        print(
            f"{args.rounds} rounds, {args.cohort} of {args.clients} clients each: {clock.seconds:.1f} s after the first round"
        )
        for name, path in (("CSV", csv), ("W&B", wandb)):
            seconds = SPENT[name] - started[name]
            share = 100 * seconds / clock.seconds
            print(f"{name}: {seconds:.2f} s, {share:.2f} % of the time, {size_of(path):.1f} MB")


def _after_first_round(started: dict[str, float]) -> L.Callback:
    class Note(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.current_epoch == 1:
                started.update(SPENT)

    return Note()


if __name__ == "__main__":
    main()
