"""How long sites of unequal speeds take to a target accuracy, in synchronous and in asynchronous rounds over the network.

    python tools/benchmark_asynchronous.py

Three sites with equally many rows sleep while they read them, in all 1, 1 and 8 times --seconds. The control has sites of equal
speed, where asynchronous rounds should save little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import yaml
from federation_demo import CONFIG, Federation, digits, write_rows
from torch.utils.data import DataLoader, Dataset

SPEEDS = {"1:1:8": (1, 1, 8), "1:1:1": (1, 1, 1)}
KINDS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "FedBuff, buffer 2": {"strategy": "FedBuff", "asynchronous": {"concurrency": 3, "buffer": 2}},
    "FedAsync": {"strategy": "FedAsync", "asynchronous": {"concurrency": 3, "buffer": 1}},
}
_ROWS = 200


class SlowRows(Dataset[Any]):
    """Sleep for each row that is read.

    Args:
        path: a CSV file with the label in its last column.
        seconds: the seconds that all rows take together.
    """

    def __init__(self, path: str, seconds: float) -> None:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
        self.features, self.labels = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1]).long()
        self.pause = seconds / len(rows)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Any:
        time.sleep(self.pause)
        return self.features[number], self.labels[number]


class Slow(L.LightningDataModule):
    """Serve the rows of a site that is slow; see :class:`SlowRows`."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        self.rows = SlowRows(path, seconds)

    def train_dataloader(self) -> Any:
        """Return batches of 20 rows."""
        return DataLoader(self.rows, batch_size=20, shuffle=True)


class Stopwatch(L.Callback):
    """End the fit when the validation accuracy reaches a target, and write down when that was.

    Args:
        path: the file for the seconds since the first round began, and the number of models.
        target: the accuracy.
    """

    def __init__(self, path: str, target: float) -> None:
        self.path, self.target = path, target

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the watch."""
        self.begun = time.monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop it at the target."""
        if not trainer.sanity_checking and trainer.callback_metrics["val_accuracy"] >= self.target and not trainer.should_stop:
            found = {"seconds": time.monotonic() - self.begun, "models": trainer.current_epoch + 1}
            Path(self.path).write_text(json.dumps(found), encoding="utf-8")
            trainer.should_stop = True


def prepare(folder: Path, speeds: tuple[int, ...], seconds: float) -> Federation:
    """Write the files of three sites with equally many rows, and start all processes but the fit."""
    federation = Federation(folder, life=600)
    features, labels = digits(500 + 3 * _ROWS)
    federation.prepare(features, labels, test=500)
    for k, (name, speed) in enumerate(zip(federation.names, speeds, strict=True)):
        part = slice(500 + k * _ROWS, 500 + (k + 1) * _ROWS)
        write_rows(folder / name / "own.csv", features[part], labels[part])
        slow = {"class_path": "benchmark_asynchronous.Slow", "init_args": {"path": "own.csv", "seconds": speed * seconds}}
        data = {"datamodule": slow, "policy": {"federations": "any"}}
        (folder / name / "data.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    federation.serve()
    federation.register()
    for name in federation.names:
        federation.start_site(name)
    return federation


def measure(federation: Federation, kind: str, seed: int, target: float) -> dict[str, float]:
    """Return the seconds and the models to the target accuracy of one fit."""
    server = federation.folder / "server"
    config = yaml.safe_load(CONFIG)
    watch = {"class_path": "benchmark_asynchronous.Stopwatch", "init_args": {"path": "reached.json", "target": target}}
    config["trainer"] |= {"max_epochs": 200, "callbacks": [watch]}
    config["seed_everything"] = seed
    config["federation"] |= {"seed": seed, **KINDS[kind]}
    (server / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (server / "reached.json").unlink(missing_ok=True)
    shutil.rmtree(server / "run", ignore_errors=True)
    fit = federation.start_fit("--trainer.default_root_dir", "run")
    try:
        status = fit.wait(federation.life)
    except subprocess.TimeoutExpired:
        fit.kill()
        raise
    if status or not (server / "reached.json").exists():
        raise SystemExit((server / "fit.log").read_text(encoding="utf-8")[-3000:])
    found: dict[str, float] = json.loads((server / "reached.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print the medians over seeds, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="How long a fast site sleeps in a training.")
    parser.add_argument("--target", type=float, default=0.7, help="The validation accuracy to reach.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--speeds", nargs="+", choices=SPEEDS, default=list(SPEEDS))
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", "")])
    for name in arguments.speeds:
        with tempfile.TemporaryDirectory() as place:
            federation = prepare(Path(place), SPEEDS[name], arguments.seconds)
            try:
                medians: dict[str, float] = {}
                for kind in arguments.kinds:
                    found = [measure(federation, kind, seed, arguments.target) for seed in range(arguments.seeds)]
                    medians[kind] = statistics.median(one["seconds"] for one in found)
                    each = ", ".join(f"{one['seconds']:.0f} s ({one['models']} models)" for one in found)
                    ratio = medians[kind] / medians[arguments.kinds[0]]
                    print(f"{name}, {kind}: median {medians[kind]:.0f} s, ratio {ratio:.2f}; {each}", flush=True)
            finally:
                federation.stop()


if __name__ == "__main__":
    main()
