"""Runs killed by SIGKILL and resumed: do they end with the weights of one that nobody disturbed, bit for bit?

    python tools/kill_runs.py --runs 100 --out /dev/shm/killed

Each run, AdaFed on embedded digits with a small network, is killed at a random moment, every other one while it writes a
checkpoint, and resumed from its last checkpoint, or started again where there was none yet; some are killed again. Prints how
many came to the same weights, and the moments; exit status 1 if one did not. Give an ``--out`` on another file system than the
temp folder's. Needs Linux and mlxtend.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = (
    f"--config={ROOT / 'configs' / 'adafed_mnist.yaml'}",
    "--trainer.max_epochs=6",
    "--trainer.accelerator=cpu",
    "--trainer.logger=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.limit_val_batches=2",
    "--model.init_args.network=LeNet",
    "--data.datamodule.source=embedded",
    "--data.datamodule.eval_batch_size=100",
    "--federation.local.max_epochs=1",
    "--federation.local.limit_train_batches=2",
    "--federation.local.threads=1",
    "--federation_report.partition=false",
)
UNFINISHED = ".*.ckpt.*.partial"


def fit(folder: Path, resumes: bool) -> int:
    """Start a fit in a forked process, which has imported everything already."""
    process = os.fork()
    if process:
        return process
    os.chdir(folder)
    sink = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    status = 1
    try:
        from fl_lightning.cli.federation_cli import main

        more = ("--ckpt_path=last",) if resumes else ()
        sys.argv = ["fl-lightning", "fit", *SETTINGS, f"--trainer.default_root_dir={folder / 'run'}", *more]
        main()
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(process: int) -> bool:
    """Whether it is over."""
    return os.waitpid(process, os.WNOHANG)[0] != 0


def kill(process: int, folder: Path, seconds: float, in_checkpoint: bool) -> str:
    """Kill it after some time, or when it next writes a checkpoint after that; what it was doing."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if ended(process):
            return "was done"
        time.sleep(0.001)
    checkpoints = folder / "run" / "checkpoints"
    while in_checkpoint and not any(checkpoints.glob(UNFINISHED)):
        if ended(process):
            return "was done"
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "in a checkpoint" if any(checkpoints.glob(UNFINISHED)) else "elsewhere"


def can_go_on(folder: Path) -> bool:
    """Whether the run has a checkpoint."""
    return any((folder / "run" / "checkpoints").glob("*.ckpt"))


def whole(folder: Path) -> float:
    """Fit without disturbance, from the last checkpoint where there is one; the seconds it took."""
    begun = time.monotonic()
    status = os.waitstatus_to_exitcode(os.waitpid(fit(folder, can_go_on(folder)), 0)[1])
    if status:
        raise SystemExit(f"A run ended with {status}: {(folder / 'log.txt').read_text()[-2000:]}")
    return time.monotonic() - begun


def same_weights(one: Path, other: Path) -> bool:
    """Bit for bit, with the round and the strategy's state."""
    import torch

    a, b = (torch.load(path / "run/checkpoints/last.ckpt", weights_only=True) for path in (one, other))
    same = a["state_dict"].keys() == b["state_dict"].keys() and a["epoch"] == b["epoch"]
    return same and all(torch.equal(a["state_dict"][name], b["state_dict"][name]) for name in a["state_dict"])


def main() -> None:
    """Run, kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("/dev/shm/killed_runs"))
    args = parser.parse_args()
    import torch

    import fl_lightning.cli.federation_cli  # noqa: F401  once for all children

    torch.set_num_threads(1)  # before anything is forked
    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    reference = out / "reference"
    reference.mkdir(parents=True)
    seconds = whole(reference)
    devices = out.stat().st_dev, Path(tempfile.gettempdir()).stat().st_dev
    print(f"Undisturbed: {seconds:.1f} s. Checkpoints on device {devices[0]}, temp folder on {devices[1]}.", flush=True)
    draw, good = random.Random(args.seed), 0
    moments: Counter[str] = Counter()
    for number in range(args.runs):
        folder = out / str(number)
        folder.mkdir()
        for attempt in range(draw.choice((1, 1, 1, 2))):
            process = fit(folder, can_go_on(folder))
            moments[kill(process, folder, draw.uniform(0.1, 0.85) * seconds, (number + attempt) % 2 == 0)] += 1
        if not same_weights_after(folder, reference):
            print(f"{number}: other weights; kept in {folder}", flush=True)
            continue
        good += 1
        shutil.rmtree(folder)
    what = ", ".join(f"{count} {moment}" for moment, count in moments.items())
    print(f"{good} of {args.runs} resumed to the same weights. Killed: {what}.")
    sys.exit(good < args.runs)


def same_weights_after(folder: Path, reference: Path) -> bool:
    """Let a killed run go on to its end, and compare."""
    whole(folder)
    return same_weights(folder, reference)


if __name__ == "__main__":
    main()
