"""Pictures of a network's predicted images next to their targets."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from fl_lightning.reporting.matrices import as_png, new_figure
from fl_lightning.reporting.tables import log_picture

_COLOURS = "magma_r"
"""A colour map that is perceptually uniform, prints well in grey, and is pale at zero."""


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


def keep_picture(trainer: Trainer, name: str, picture: bytes, round_idx: int) -> None:
    """Write a PNG file ``<name>.png`` next to the file of each CSV logger, or into the run's folder, and send it to W&B.

    Args:
        trainer: Trainer with the loggers; call this on the first rank only.
        name: name of the picture.
        picture: contents of the file.
        round_idx: index of its round.
    """
    folders = [Path(logger.log_dir) for logger in trainer.loggers if isinstance(logger, CSVLogger)]
    for folder in folders or [Path(trainer.default_root_dir)]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(picture)
    log_picture(trainer, name, picture, round_idx)
