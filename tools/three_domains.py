"""Digits of three origins as three clients, and the table of docs/three_domains.md from them.

    python tools/three_domains.py --mnist data --usps usps.h5 --out runs/three_domains --jobs 2

writes MNIST, USPS and scikit-learn's digits as images into ``--out``/images/<domain>/<class>/, runs every algorithm with three
seeds by ``configs/domains_images.yaml`` and writes the table. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).parent.parent
SEEDS = (0, 1, 2)
ROUNDS = 10
ALGORITHMS = {
    "FedAvg": (),
    "RingFed": ("--federation.route=RingFed", "--federation.route.periods=2"),
    "Fed-Cyclic": ("--federation.route=FedCyclic",),
    "Fed-Star": ("--federation.route=FedStar", "--federation.route.periods=2"),
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}


def write_images(folder: Path, mnist: Path, usps: Path) -> None:
    """The three data sets, training and test parts together, as PNG files by domain and class."""
    import h5py  # this tool's only
    from sklearn.datasets import load_digits
    from torchvision.datasets import MNIST

    parts = [MNIST(str(mnist), train=train) for train in (True, False)]
    sets = {"mnist": (np.concatenate([p.data.numpy() for p in parts]), np.concatenate([p.targets.numpy() for p in parts]))}
    with h5py.File(usps) as file:
        data, target = (np.concatenate([file[part][name][:] for part in ("train", "test")]) for name in ("data", "target"))
    sets["usps"] = ((data.reshape(-1, 16, 16) * 255).round().clip(0, 255).astype(np.uint8), target)
    digits = load_digits()
    sets["sklearn"] = ((digits.images / 16 * 255).round().astype(np.uint8), digits.target)
    for domain, (images, labels) in sets.items():
        for label in range(10):
            (folder / domain / str(label)).mkdir(parents=True, exist_ok=True)
        for position, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(folder / domain / str(label) / f"{position:05d}.png")


def run(name: str, seed: int, images: Path, out: Path) -> None:
    """One run, unless it is there."""
    folder = out / name / str(seed)
    if (folder / "client_comparison.csv").exists():
        return
    periods = 2 if any("periods" in option for option in ALGORITHMS[name]) else 1
    command = [sys.executable, "-c", "from fl_lightning.cli import main; main()", "fit"]
    command += ["--config", str(REPOSITORY / "configs" / "domains_images.yaml"), *ALGORITHMS[name]]
    command += [f"--data.datamodule.root={images}", f"--trainer.max_epochs={ROUNDS // periods}", "--trainer.accelerator=cpu"]
    command += [f"--seed_everything={seed}", f"--federation.seed={seed}", f"--data.partitioner.seed={seed}"]
    command += ["--trainer.logger=false", "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={folder}"]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
    print(name, seed, flush=True)


def table(out: Path) -> str:
    """Client by client: alone, and what each algorithm's global and personalised models do there."""
    runs = {
        name: [list(csv.DictReader((out / name / str(seed) / "client_comparison.csv").open())) for seed in SEEDS]
        for name in ALGORITHMS
    }
    lines = [
        "# Three domains that nobody simulated",
        "",
        "MNIST (70,000 images), USPS (9,298) and scikit-learn's digits (1,797) are three clients: the same ten classes,",
        "written, scanned and cut differently; all resized to 28 x 28 grey pixels. `configs/domains_images.yaml`: LeNet,",
        f"SGD of rate 0.05, B = 32, {ROUNDS} local epochs per client in all (RingFed and Fed-Star: {ROUNDS // 2} rounds of two",
        "periods), 20 % of each client's images as its own test part. Accuracy in percent on those, mean ± standard",
        "deviation over seeds 0, 1, 2. Local only is the client by itself, for as many epochs; personalised is one more",
        "epoch at the client after the last round; the gain is that of personalised over local only. `all` weighs clients",
        "by their test images, of which MNIST has 86 %.",
        "",
        "Made by `python tools/three_domains.py`.",
        "",
        "| client | test images | algorithm | local only | global | personalised | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for client in [row["client"] for row in runs["FedAvg"][0]]:
        for name, seeds in runs.items():
            rows = [next(row for row in rows if row["client"] == client) for rows in seeds]
            cells = []
            for column in ("local only", "global", "personalised", "gain"):
                values = [100 * float(row[column]) for row in rows]
                cells.append(f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}")
            lines.append(f"| {client} | {rows[0]['test examples']} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the images, run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, default=Path("data"), help="folder with MNIST/raw")
    parser.add_argument("--usps", type=Path, default=Path("data/usps.h5"), help="USPS as HDF5: train and test, data and target")
    parser.add_argument("--out", type=Path, default=Path("runs/three_domains"))
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    args = parser.parse_args()
    images = args.out / "images"
    if not images.exists():
        write_images(images, args.mnist, args.usps)
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(run, name, seed, images, args.out) for seed in SEEDS for name in ALGORITHMS]:
            future.result()
    (REPOSITORY / "docs" / "three_domains.md").write_text(table(args.out))


if __name__ == "__main__":
    main()
