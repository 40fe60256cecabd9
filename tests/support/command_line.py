"""What the tests of the command line type."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADAFED = str(ROOT / "configs" / "adafed_mnist.yaml")
# The same run on little: embedded digits, a dozen per client, a small network.
QUIET = [
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--federation_report.partition=false",
]
SMALL = [
    *QUIET,
    "--model.init_args.network=LeNet",
    "--data.datamodule.source=embedded",
    "--data.datamodule.batch_size=10",
    "--data.datamodule.eval_batch_size=20",
    "--federation.local.max_epochs=1",
    "--federation.local.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
]


FEW_CLIENTS = ["--data.partitioner.init_args.counts=[[9,0,9,0,9,0,9,0,9,0],[0,9,0,9,0,9,0,9,0,9],[5,5,5,5,5,5,5,5,5,5]]"]
"""For Fed-Star, which evaluates each client's model on all examples of each client, twice a round."""


def also(config: str) -> list[str]:
    """Return the options that a configuration on top of adafed_mnist needs beside SMALL."""
    more = ["--federation.local.max_epochs=2"] if "fedprox" in config else []  # some clients do fewer
    more += ["--federation.local.max_epochs=2", "--federation.strategy.head_epochs=1"] if config == "fedrep_mnist" else []
    every_batch = ["--trainer.limit_val_batches=1.0", "--data.datamodule.eval_batch_size=200"]
    more += every_batch if config == "cheaper_evaluation" else []  # it tunes the batches
    more += ["--trainer.limit_train_batches=3"] if config == "centralized_mnist" else []
    more += ["--federation.clients_per_round=3"] if config == "shapley_mnist" else []  # 8 coalitions, not 64
    more += FEW_CLIENTS if config == "fedstar_mnist" else []
    return more


def fit(fl, *args: str, rounds: int = 1) -> tuple[int, str]:
    return fl("fit", "--config", ADAFED, *SMALL, f"--trainer.max_epochs={rounds}", *args)


def small(fl, *args: str, rounds: int = 1) -> tuple[int, str]:
    return fit(fl, "--trainer.logger=false", *args, rounds=rounds)


TINY_CELLS = ["--data.datamodule.sites={a: {images: 6}, b: {images: 9, missed: 0.5}}", "--data.datamodule.test_images=4"]
OTHER_TASKS: dict[str, tuple[list[str], list[str]]] = {
    "cell_counting": (["cell_counting"], TINY_CELLS),
    "cell_counting_robust": (["cell_counting_robust"], TINY_CELLS),
    "cells": (["data/cells"], ["--data.datamodule.image_size=32", "--federation.local.limit_train_batches=1"]),
    "linear_regression_simulated": (["linear_regression_simulated"], []),
    "network_mse_simulated": (["network_mse_simulated"], []),
    "svm_simulated": (["svm_simulated"], []),
    "mocha_simulated": (["mocha_simulated"], []),
    "kmeans_simulated": (["kmeans_simulated"], []),
    "hospital_tables": (["hospital_tables"], []),
    "table": (["data/table"], ["--model.network.in_features=2"]),
    "transfer_learning_mnist": (
        ["transfer_learning_mnist"],
        [*(flag for flag in SMALL if "LeNet" not in flag and "trainer.accel" not in flag), "--trainer.callbacks.thaw_after=2"],
    ),
}
"""Configurations that do not go on top of adafed_mnist: by name, the configurations of a run and what makes it small."""


def undocumented(names: list[str]) -> list[str]:
    """Names of metrics that docs/metrics.md does not have."""
    documented = re.findall(r"^\|(?: [^|`]+ \|)? `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    patterns = [re.escape(p).replace("<client>", r"[^/]+").replace("<class>", r"\d+") for p in documented] + ["step"]
    return [name for name in names if not any(re.fullmatch(p, name) for p in patterns)]


def completion(offers: Path) -> dict[str, str]:
    """Return the environment in which a shell asks what could end a line, and gets the answer in a file."""
    line = "fl-lightning fit --federation.clients_per"
    what = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(offers)}
    return {**what, "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
