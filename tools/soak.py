"""A long run, and what it leaves: does memory stay, do only logs grow, is nothing left open?

    python tools/soak.py --rounds 1000 --out /tmp/soak

AdaFed on embedded digits, 20 clients and a small network, with checkpoints and CSV logs, by the command line's own entry point.
Prints the process's peak memory, open files, threads, child processes and the run folder's size after the first rounds and
after the last; exit status 1 if the peak has grown by more than 5 %, or anything but logs has. Needs Linux and mlxtend.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

ROOT = Path(__file__).parent.parent
WARM = 50
"""Rounds after which everything that is built once is there."""


def state(folder: Path) -> dict[str, int]:
    """What the process holds now, and the files of a run."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    files = {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    logs = {path for path in files if path.suffix == ".csv"}
    return {
        "peak memory, kB": int(status["VmHWM"].split()[0]),
        "open files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "child processes": len(children),
        "files": len(files),
        "bytes beside logs": sum(size for path, size in files.items() if path not in logs),
        "bytes of logs": sum(size for path, size in files.items() if path in logs),
    }


class Probe(Callback):
    """Looks at the process after the first rounds and after the last."""

    seen: list[dict[str, int]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the round's checkpoint: the one before is there."""
        if not trainer.sanity_checking and trainer.current_epoch in (WARM, (trainer.max_epochs or 0) - 1):
            Probe.seen.append(state(Path(trainer.default_root_dir)))


def main() -> int:
    """Run, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help=f"more than {WARM + 1}")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run; must not hold one")
    options = parser.parse_args()
    sys.modules["soak"] = sys.modules[__name__]  # by which name the configuration asks for the callback
    settings = {
        "config": ROOT / "configs" / "adafed_mnist.yaml",
        "trainer.max_epochs": options.rounds,
        "trainer.default_root_dir": options.out,
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
        "trainer.logger.class_path": "lightning.pytorch.loggers.CSVLogger",
        "trainer.logger.init_args.save_dir": options.out,
        "trainer.callbacks+": "soak.Probe",
        "model.init_args.network": "LeNet",
        "data.datamodule.source": "embedded",
        "data.partitioner": "{class_path: IIDPartitioner, init_args: {num_clients: 20}}",
        "data.datamodule.batch_size": 20,
        "federation.local.engine": "fabric",
        "federation.local.threads": 1,
        "federation.local.max_epochs": 1,
        "federation.local.limit_train_batches": 1,
        "trainer.limit_val_batches": 1,
    }
    sys.argv = ["fl-lightning", "fit", *(f"--{name}={value}" for name, value in settings.items())]
    from fl_lightning.cli.federation_cli import main as fit

    fit()
    early, late = Probe.seen
    for name in early:
        ratio = late[name] / max(1, early[name])
        print(f"{name}: {early[name]:,} after {WARM} rounds, {late[name]:,} after {options.rounds} ({ratio:.3f})")
    same = all(late[name] <= early[name] for name in ("open files", "threads", "child processes", "files"))
    steady = all(late[name] <= 1.05 * early[name] for name in ("peak memory, kB", "bytes beside logs"))
    print("steady" if same and steady else "NOT steady")
    return 0 if same and steady else 1


if __name__ == "__main__":
    sys.exit(main())
