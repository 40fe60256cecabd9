"""A federation in a process of its own: killed, resumed, on one rank or two. Writes the final weights."""

import argparse
import os
import signal
from pathlib import Path

import lightning as L
import numpy as np
import torch
from federations import CLASSES, Blobs, Consecutive, Plain, every_round, network, trainer

import fl_lightning as fl


class Kill(fl.FederationCallback):
    """SIGKILL in round 2, or while its checkpoint is half written; or SIGTERM, or what SLURM sends before the end of a job.

    With several ranks, one of them alone is killed.
    """

    def __init__(self, when: str, rank: int = 0) -> None:
        self.when, self.rank = when, rank

    def on_client_start(self, trainer, pl_module, round_idx, client) -> None:
        if self.when == "SLURM" and round_idx == 2 and client == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if self.when == "politely" and round_idx == 2 and client == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_round_start(self, trainer, pl_module, round_idx, cohort) -> None:
        if self.when == "in a checkpoint" and round_idx == 2:
            os.fsync = half_and_kill
        if self.when == "politely, one rank" and round_idx == 2 and trainer.global_rank == self.rank:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.when == "politely, all ranks" and round_idx == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        if self.when == "one rank" and round_idx == 2 and trainer.global_rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def half_and_kill(descriptor: int) -> None:
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


class Broken(Plain):
    """Fails with an error of its own in the client of 20 examples, which one rank trains."""

    def training_step(self, batch, batch_idx):
        if self.trainer.num_training_batches == 4:
            raise ZeroDivisionError("in one client")
        return super().training_step(batch, batch_idx)


class Unseeded(Consecutive):
    """Draws other examples in each process."""

    def partition(self, num_examples, labels):
        order = torch.from_numpy(np.random.default_rng().permutation(num_examples))
        return [order[part] for part in super().partition(num_examples, labels)]


class OfThisRank(fl.AdaFed):
    """Remembers the weights of the clients that this rank has trained, and scales the average by them."""

    def start_round(self, start):
        super().start_round(start)
        self.seen = 0.0

    def accumulate(self, update, sums):
        self.seen += update.client
        return super().accumulate(update, sums)

    def aggregate(self, sums):
        return super().aggregate(sums) * (1 + 1e-12 * self.seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kill", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--module", default="task")
    parser.add_argument("--mistake", default="", choices=["partition", "state"])
    args = parser.parse_args()

    L.seed_everything(11, verbose=False)
    if args.module == "task":  # adaptive loss, dropout, weights by accuracy
        net = torch.nn.Sequential(*network(batchnorm=True)[:3], torch.nn.Dropout(0.2), torch.nn.Linear(8, CLASSES))
        module = fl.ClassificationTask(net, CLASSES, fl.F1WeightedCrossEntropy(CLASSES), lambda p: torch.optim.Adam(p, lr=0.02))
        metric = "val_accuracy"
    else:
        module, metric = (Broken if args.module == "broken" else Plain)(), "val_acc"
    federation = fl.FederatedOrchestrator(
        (OfThisRank if args.mistake == "state" else fl.AdaFed)(metric),
        fl.LocalTraining(max_epochs=2, threads=1),
        server_optimizer=lambda p: torch.optim.SGD(p, lr=0.9, momentum=0.5),
        clients_per_round=0.7,
    )
    flags = {"devices": args.ranks, "strategy": "ddp" if args.ranks > 1 else "auto", "enable_checkpointing": True}
    run = trainer(args.rounds, federation, Kill(args.kill), every_round(args.folder), **flags)
    partitioner = Unseeded if args.mistake == "partition" else Consecutive
    data = fl.FederatedDataModule(Blobs(n=61), partitioner((7, 20, 13, 9, 12)))
    run.fit(module, data, ckpt_path=str(args.folder / "last.ckpt") if args.resume else None)
    if run.is_global_zero:
        metrics = {name: float(value) for name, value in run.callback_metrics.items() if "seconds" not in name}
        torch.save({"weights": module.state_dict(), "metrics": metrics, "steps": run.global_step}, args.out)


if __name__ == "__main__":
    main()
