"""What the tests of the command line type."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
ADAFED = str(ROOT / "configs" / "adafed_mnist.yaml")
# The same run on little: embedded digits, a dozen per client, a small network.
SMALL = [
    "--model.init_args.network=LeNet",
    "--data.datamodule.source=embedded",
    "--data.datamodule.batch_size=10",
    "--data.datamodule.eval_batch_size=100",
    "--federation.local.max_epochs=1",
    "--federation.local.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--partition_report.enabled=false",
]


def fit(fl, *args: str, rounds: int = 1) -> tuple[int, str]:
    return fl("fit", "--config", ADAFED, *SMALL, f"--trainer.max_epochs={rounds}", *args)


def small(fl, *args: str, rounds: int = 1) -> tuple[int, str]:
    return fit(fl, "--trainer.logger=false", *args, rounds=rounds)
