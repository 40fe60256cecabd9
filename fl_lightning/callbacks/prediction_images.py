"""Pictures of the global model's predictions at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.reporting.prediction_images import draw_predictions, keep_picture
from fl_lightning.utilities.argument_types import ChecksTypes


class PredictionImages(ChecksTypes, Callback):
    """Draw image, target and prediction of an image-to-image network.

    ``val_predictions.png`` shows the global model on the first validation images at the end of a fit, and
    ``test_predictions.png`` the same on the first test images at the end of a test. The pictures are saved next to the file of
    the CSV logger, or in the run's folder without one, and go to W&B. If the module has a ``readout`` that maps such
    images to one number each, as :class:`~fl_lightning.DensityCount` has, the pictures show the numbers of target and
    prediction. A module that does not predict images gets one warning and no picture. Needs matplotlib.

    Args:
        images: number of images to draw, >= 1, from the first batch (of the first rank, if there are several).
    """

    def __init__(self, images: int = 4) -> None:
        require(images >= 1, "PredictionImages.images", "1 or above", images)
        self.images = images
        self._batch: Any = None
        self._warned = False

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first images as the module gets them; the prediction is made by the final model."""
        if trainer.state.fn is TrainerFn.FITTING:
            self._keep(trainer, batch, batch_idx + dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first images as the module gets them."""
        self._keep(trainer, batch, batch_idx + dataloader_idx)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture, on the first rank."""
        self._show(trainer, pl_module, "val_predictions", max(0, trainer.current_epoch - 1))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture, on the first rank."""
        self._show(trainer, pl_module, "test_predictions", trainer.current_epoch)

    def _keep(self, trainer: Trainer, batch: Any, position: int) -> None:
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        if position == 0 and trainer.is_global_zero and not quick:
            parts = [*batch, None][:2] if isinstance(batch, list | tuple) else [None, None]
            self._batch = [p[: self.images].detach().clone() if isinstance(p, Tensor) and p.ndim else None for p in parts]

    def _show(self, trainer: Trainer, module: LightningModule, name: str, round_idx: int) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        try:
            inputs, targets = _images(batch, "a batch of inputs and targets")
            (predictions,) = _images([_forward(trainer, module, inputs)], "predictions")
            if predictions.shape != targets.shape:
                raise ValueError(f"predictions have the shape {tuple(predictions.shape)}, targets {tuple(targets.shape)}")
        except Exception as error:  # a module that was not made for this may raise anything
            self._warn(f"it needs a module that maps images to images, but {type(module).__name__} does not: {error}")
            return
        counts = _counts(getattr(module, "readout", None), targets, predictions)
        picture = draw_predictions(inputs, targets, predictions, counts)
        if picture is None:
            self._warn("drawing needs matplotlib, which is not installed (pip install 'fl_lightning[plots]')")
        else:
            keep_picture(trainer, name, picture, round_idx)

    def _warn(self, why: str) -> None:
        if not self._warned:
            rank_zero_warn(f"PredictionImages draws no pictures: {why}. Fix this, or remove it from 'trainer.callbacks'.")
        self._warned = True


def _images(parts: list[Any], what: str) -> list[Tensor]:
    """Return the parts if they are batches of images."""
    shapes = [str(tuple(part.shape)) if isinstance(part, Tensor) else "no tensor" for part in parts]
    if not all(isinstance(part, Tensor) and part.ndim == 4 for part in parts):
        raise ValueError(f"{what} must have the shape (N, C, H, W), but got {' and '.join(shapes)}")
    return parts


def _forward(trainer: Trainer, module: LightningModule, inputs: Tensor) -> Tensor:
    """Return the module's output in evaluation mode, and leave its modes and the random state unchanged."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with isolated_rng(0, module.device), torch.no_grad(), trainer.precision_plugin.val_step_context():
            drawn: Tensor = module(inputs.to(module.device))
            return drawn
    finally:
        for part, mode in modes:
            part.training = mode


def _counts(readout: Callable[[Tensor], Tensor] | None, targets: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the counts of targets and predictions, if the module has a readout of one number for each."""
    if not callable(readout):
        return None
    try:
        with torch.no_grad():
            counts = readout(targets.to(predictions.device)), readout(predictions)
    except Exception:  # an attribute of that name that is something else
        return None
    return counts if all(isinstance(c, Tensor) and c.shape == targets.shape[:1] for c in counts) else None
