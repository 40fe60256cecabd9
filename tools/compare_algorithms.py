"""Every algorithm of configs/ on the Simulation 2 split of MNIST, and the table of docs/comparison.md from it.

    python tools/compare_algorithms.py --root data --out runs/comparison --jobs 2

runs what is missing in ``--out`` (LeNet, SGD 0.05, B = 20, E = 1, 20 client epochs, three seeds; one thread each) and
writes the table. A run that is there already is not repeated: delete its folder to do so.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parent.parent
CONFIGS = REPOSITORY / "configs"
BASE = CONFIGS / "adafed_mnist.yaml"
SEEDS = (0, 1, 2)
EPOCHS = 20
COMMON = (
    "--model.init_args.network=LeNet",
    "--model.init_args.optimizer=torch.optim.SGD",
    "--model.init_args.optimizer.lr=0.05",
    "--model.init_args.optimizer.momentum=0",
    "--data.datamodule.batch_size=20",
    "--data.datamodule.source=mnist",
    "--federation.local.max_epochs=1",
    "--federation.local.threads=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
)
# The thresholds keep glibc from giving memory back and faulting it in again at every step.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
LEFT_OUT = ("adafed_attackers_mnist",)
"""Another split: eight clients."""
DIFFERENT = {"fedprox_mnist": ("--federation.local.partial_work.share=0",)}
"""Fewer than one epoch is none."""


def names() -> list[str]:
    """The configurations that are compared, baselines last."""
    found = sorted(path.stem for path in CONFIGS.glob("*_mnist.yaml") if path.stem not in LEFT_OUT)
    return sorted(found, key=lambda name: name in ("centralized_mnist", "last_client_mnist", "local_only_mnist"))


def rounds_of(name: str) -> int:
    """Rounds with the same budget of client epochs: a round of P periods trains P times."""
    route = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()).get("federation", {}).get("route")
    periods = route.get("init_args", {}).get("periods", 1) if isinstance(route, dict) else 1
    return EPOCHS // int(periods)


def run(name: str, seed: int, root: str, out: Path) -> None:
    """One run into ``out/name/seed``; what it came to in ``result.json`` there."""
    folder = out / name / str(seed)
    if (folder / "result.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-c", "from fl_lightning.cli import main; main()", "fit", f"--config={BASE}"]
    command += [f"--config={CONFIGS / name}.yaml", *COMMON, *DIFFERENT.get(name, ()), f"--data.datamodule.root={root}"]
    command += [f"--seed_everything={seed}", f"--federation.seed={seed}", f"--data.partitioner.seed={seed}"]
    command += [f"--trainer.max_epochs={rounds_of(name)}", f"--trainer.default_root_dir={folder}"]
    command += ["--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={folder}", "--trainer.logger.name=csv"]
    begun = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
    result = summary(folder) | {"seconds": time.perf_counter() - begun}
    (folder / "result.json").write_text(json.dumps(result))
    print(name, seed, {key: round(value, 4) if value is not None else None for key, value in result.items()}, flush=True)


def summary(folder: Path) -> dict[str, float | None]:
    """What a run's CSV log comes to."""
    (path,) = folder.glob("csv/*/metrics.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    accuracy, f1, up, down = (
        [float(row[column]) for row in rows if row.get(column)]
        for column in ("val_accuracy", "val_f1_macro", "federation/bytes_up", "federation/bytes_down")
    )

    def reaches(level: float) -> float | None:
        return next((position + 1.0 for position, value in enumerate(accuracy) if value >= level), None)

    return {
        "best": max(accuracy),
        "final": accuracy[-1],
        "f1": f1[-1],
        "to_90": reaches(0.90),
        "to_95": reaches(0.95),
        "megabytes": (sum(up) + sum(down)) / 1e6,
    }


def cell(values: list[float | None], scale: float = 1.0, digits: int = 1) -> str:
    """Mean and standard deviation; where some seeds never got there, how many did."""
    there = [value * scale for value in values if value is not None]
    if not there:
        return "never"
    text = f"{statistics.fmean(there):.{digits}f}"
    if len(there) < len(values):
        return f"{text} ({len(there)} of {len(values)})"
    return f"{text} ± {statistics.stdev(there):.{digits}f}" if len(there) > 1 and digits else text


def table(out: Path) -> str:
    """The page."""
    lines = [
        "# Every algorithm on the same data",
        "",
        "AdaFed's Simulation 2 split of MNIST (6 clients, 10,110 images; the server's set is MNIST's test set), LeNet,",
        f"SGD of rate 0.05, B = 20, one local epoch a round, {EPOCHS} epochs per client, seeds {', '.join(map(str, SEEDS))}.",
        f"With two periods a round there are {EPOCHS // 2} rounds. Mean ± standard deviation over the seeds; accuracy and",
        "macro-F1 in percent; rounds until the accuracy is first reached; megabytes sent and received by all clients; seconds",
        "of the fastest seed's whole run, on one thread with another run beside it. One setting for all and none tuned: the",
        "order of these lines is not that of the algorithms.",
        "`local_only` is the best client's model; `centralized` trains on the union.",
        "",
        "Made by `python tools/compare_algorithms.py`; what each is: [algorithms](algorithms/README.md).",
        "",
        "| configuration | best | final | macro-F1 | to 90 % | to 95 % | MB | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names():
        results = [json.loads((out / name / str(seed) / "result.json").read_text()) for seed in SEEDS]

        def column(key: str, results: list[dict[str, float | None]] = results) -> list[float | None]:
            return [result[key] for result in results]

        cells = [cell(column(key), 100) for key in ("best", "final", "f1")]
        cells += [cell(column("to_90")), cell(column("to_95"))]
        cells += [cell(column("megabytes"), digits=0), f"{min(result['seconds'] for result in results):.0f}"]
        lines.append(f"| `{name.removesuffix('_mnist')}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with MNIST/raw")
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--only", nargs="*", help="names of configurations; the table is then not written")
    args = parser.parse_args()
    chosen = args.only or names()
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(run, name, seed, args.root, args.out) for seed in SEEDS for name in chosen]:
            future.result()
    if not args.only:
        (REPOSITORY / "docs" / "comparison.md").write_text(table(args.out))


if __name__ == "__main__":
    main()
