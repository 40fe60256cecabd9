"""Pictures of the global model's predictions at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.reporting.matrices import as_png, new_figure
from fl_lightning.reporting.tables import log_values
from fl_lightning.utilities.argument_types import ChecksTypes

_COLOURS = "magma_r"
"""A colour map that is perceptually uniform, prints well in grey, and is pale at zero."""


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
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the first images as the module gets them; the prediction is made by the final model."""
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        fits_or_tests = trainer.state.fn in (TrainerFn.FITTING, TrainerFn.TESTING)
        if fits_or_tests and batch_idx + dataloader_idx == 0 and trainer.is_global_zero and not quick:
            parts = [*batch, None][:2] if isinstance(batch, list | tuple) else [None, None]
            self._batch = [p[: self.images].detach().clone() if isinstance(p, Tensor) and p.ndim else None for p in parts]

    on_test_batch_end = on_validation_batch_end

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture, on the first rank."""
        self._show(trainer, pl_module, "val_predictions", max(0, trainer.current_epoch - 1))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture, on the first rank."""
        self._show(trainer, pl_module, "test_predictions", trainer.current_epoch)

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
            folders = [Path(logger.log_dir) for logger in trainer.loggers if isinstance(logger, CSVLogger)]
            for folder in folders or [Path(trainer.default_root_dir)]:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{name}.png").write_bytes(picture)
            log_values(trainer, {name: picture}, round_idx)

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


def draw_predictions(
    images: Tensor, targets: Tensor, predictions: Tensor, counts: tuple[Tensor, Tensor] | None = None
) -> bytes | None:
    """Draw rows of image, target and prediction as a PNG file; targets and predictions share one scale from 0.

    Args:
        images: inputs, shape (N, C, H, W); colour if C is 3, otherwise the first channel; each is stretched to its own range.
        targets: targets, shape (N, 1, H, W).
        predictions: predictions of the same shape; values below 0 look like 0.
        counts: true and predicted counts, each of shape (N,), for the titles.

    Returns:
        The file; None if matplotlib is not installed.
    """
    rows = len(images)
    figure = new_figure(6.4, 0.3 + 2.0 * rows)
    if figure is None:
        return None
    shown, wanted, drawn = (part.detach().float().cpu().numpy() for part in (images, targets, predictions))
    axes = figure.subplots(rows, 3, squeeze=False)
    scale = {"cmap": _COLOURS, "vmin": 0, "vmax": max(float(wanted[:, 0].max()), float(drawn[:, 0].max()), 0.0) or 1.0}
    for row in range(rows):
        texts = ["image", "target", "prediction"] if row == 0 else ["", "", ""]
        if counts is not None:
            texts[1:] = [f"{text} {float(count[row]):.1f}".strip() for text, count in zip(texts[1:], counts, strict=True)]
        low, high = shown[row].min(), shown[row].max()
        picture = (shown[row] - low) / max(high - low, 1e-12)
        axes[row, 0].imshow(picture.transpose(1, 2, 0) if len(picture) == 3 else picture[0], cmap="gray", vmin=0, vmax=1)
        axes[row, 1].imshow(wanted[row, 0], **scale)
        density = axes[row, 2].imshow(drawn[row, 0], **scale)
        for axis, text in zip(axes[row], texts, strict=True):
            axis.set_title(text, fontsize="medium")
            axis.set(xticks=[], yticks=[])
    figure.colorbar(density, ax=axes, shrink=0.8 if rows == 1 else 0.5, label="target and prediction, in the target's units")
    return as_png(figure)
