"""The two checkpoints of a federation: its best round, and its last."""

from __future__ import annotations

from lightning.pytorch.callbacks import ModelCheckpoint


class BestCheckpoint(ModelCheckpoint):
    """Keeps the best round by a metric, as ``best.ckpt``.

    Args:
        monitor: a metric that the module logs in validation.
        mode: ``max`` where higher is better.
        dirpath: folder; ``<default_root_dir>/checkpoints`` by default.
    """

    def __init__(self, monitor: str = "val_accuracy", mode: str = "max", dirpath: str | None = None) -> None:
        super().__init__(dirpath, filename="best", monitor=monitor, mode=mode, enable_version_counter=False)


class LastCheckpoint(ModelCheckpoint):
    """Keeps every round's end, as ``last.ckpt``: what ``--ckpt_path last`` goes on from.

    Args:
        dirpath: folder; ``<default_root_dir>/checkpoints`` by default.
        every_n_rounds: how often, >= 1.
    """

    def __init__(self, dirpath: str | None = None, every_n_rounds: int = 1) -> None:
        super().__init__(
            dirpath,
            filename="last",
            every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
