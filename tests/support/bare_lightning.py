"""Lightning's own small module under a quiet Trainer, without the package."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from torchmetrics import MeanMetric


def trainer(**flags: Any) -> Trainer:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    short = {"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    return Trainer(**{"accelerator": "cpu", "devices": 1, **silent, **short, **flags})


class Hook(Callback):
    """Calls a function in a hook."""

    def __init__(self, name: str, function: Any) -> None:
        setattr(self, name, lambda trainer, module, *_: function(trainer, module))


class Logs(BoringModel):
    """Logs a number in each step, a metric object, and the largest of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("largest", loss, reduce_fx="max")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean.update(self.layer(batch).mean() + batch_idx)
        self.log("mean", self.mean)
