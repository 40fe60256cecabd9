"""A federation with a secret key in processes of its own: killed again and again, or on two ranks."""

import argparse
import os
import signal
from pathlib import Path

import torch
from federations import Blobs, Consecutive, Plain, every_round, trainer, weights

import fl_lightning as fl
from fl_lightning.errors import FederationError

MODES = {
    "central": lambda: {"transforms": [fl.ClientPrivacy(0.5, 8.0, delta=1e-3)]},
    "local": lambda: {"transforms": [fl.ClientPrivacy(0.5, 8.0, "local", 1e-3)]},
    "examples": lambda: {"local": fl.LocalTraining(max_epochs=2, threads=1, privacy=fl.ExamplePrivacy(1.0, 2.0, 1e-3))},
}
ALSO = {
    "targets": lambda: {
        "transforms": [fl.ClientPrivacy(0.5, delta=1e-3, target_epsilon=4.0)],
        "local": fl.LocalTraining(max_epochs=2, threads=1, privacy=fl.ExamplePrivacy(1.0, delta=1e-3, target_epsilon=3.0)),
    },
}
MOMENTS = ("start", "training", "aggregated", "checkpoint", "training")
"""Of five kills in round 2."""


class Kill(fl.FederationCallback):
    """SIGKILL in round 2: before the first client trains, before the second one, after the last, in the checkpoint."""

    def __init__(self, moment: str) -> None:
        self.moment, self.trained = moment, 0

    def on_client_start(self, trainer, pl_module, round_idx, client) -> None:
        self.trained += round_idx == 2
        if (self.moment, self.trained) in (("start", 1), ("training", 2)):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_aggregated(self, trainer, pl_module, updates) -> None:
        if trainer.current_epoch == 2 and self.moment == "aggregated":
            os.kill(os.getpid(), signal.SIGKILL)
        if trainer.current_epoch == 2 and self.moment == "checkpoint":
            os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, mode: str, moment: str = "", ranks: int = 1, rounds: int = 4) -> None:
    last = folder / "checkpoints" / "last.ckpt"
    torch.manual_seed(0)
    module = Plain()
    settings = {"local": fl.LocalTraining(max_epochs=2, threads=1), "strategy": fl.FedAvg("uniform"), **(MODES | ALSO)[mode]()}
    federation = fl.FederatedOrchestrator(**settings, clients_per_round=2)
    flags = {"default_root_dir": str(folder), "enable_checkpointing": True}
    flags |= {"devices": ranks, "strategy": "ddp"} if ranks > 1 else {}
    run = trainer(rounds, federation, Kill(moment), every_round(last.parent), **flags)
    data = fl.FederatedDataModule(Blobs(), Consecutive())
    run.fit(module, data, ckpt_path=str(last) if last.exists() else None)
    logged = {name: float(value) for name, value in run.logged_metrics.items()}
    torch.save({"weights": weights(module), "logged": logged}, folder / f"rank{run.global_rank}.pt")


def fit_in_a_fork(*args) -> int:
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    status = 1
    try:
        fit(*args)
        status = 0
    except FederationError as error:
        print(error, flush=True)
    finally:
        os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--mode")
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    if args.ranks > 1:
        fit(args.folder, args.mode, "", args.ranks)
        return
    torch.set_num_threads(1)
    for moment in MOMENTS:
        status = fit_in_a_fork(args.folder, args.mode, moment)
        assert status == -signal.SIGKILL, (moment, status)
    assert fit_in_a_fork(args.folder, args.mode) == 0


if __name__ == "__main__":
    main()
