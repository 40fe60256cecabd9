"""Let Lightning's tuners tune the centralized module before the first round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng

from fl_lightning.clients.training.inner_trainer import inner_trainer
from fl_lightning.compat.lightning_tuners import belongs_to_tuner, end_of_tuning, tune
from fl_lightning.plugins.checkpoint_io import use_safe_checkpoints
from fl_lightning.settings.local_training import LocalTraining, resolve_precision
from fl_lightning.tasks.loss_adaptation import LossAdaptation


def tune_centralized(
    trainer: Trainer, module: LightningModule, local: LocalTraining, trusted: list[str], cleanup: ExitStack
) -> None:
    """Tune the module by plain training on the examples of all clients, if the Trainer has a tuner.

    A ``LearningRateFinder`` or ``BatchSizeFinder`` sets the rate or the batch size with which all clients then train. With
    ``Tuner(trainer).lr_find(...)`` or ``scale_batch_size``, the fit ends after that, as in Lightning.

    Args:
        trainer: the user's Trainer.
        module: the user's module, whose methods are still its own.
        local: the settings of the clients' training, of which precision, clipping and accumulation hold here as well.
        trusted: the dotted paths of classes that the tuner's temporary checkpoint may contain.
        cleanup: the stack on which to register the return of the callbacks.
    """
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    tuners = [one for one in callbacks if isinstance(one, BatchSizeFinder | LearningRateFinder)]
    for tuner in tuners:
        name = type(tuner).__name__
        rank_zero_info(f"{name} tunes the centralized module, by plain training on the examples of all clients.")
        plain = _plain_trainer(trainer, local, tuner)
        use_safe_checkpoints(plain, trusted)
        with isolate_rng(), _without_callbacks(module):
            tune(tuner, plain, module, data)
        data.trainer = module.trainer = trainer
        if belongs_to_tuner(tuner):
            end_of_tuning()
    if tuners:  # a new list: Lightning is iterating over the old one
        trainer.callbacks = [one for one in callbacks if one not in tuners]  # type: ignore[attr-defined]
        cleanup.callback(setattr, trainer, "callbacks", callbacks)


@contextmanager
def _without_callbacks(module: LightningModule) -> Iterator[None]:
    """Keep the module's own callbacks out of the tuner's fit: they belong to the federation."""
    own = vars(module).get("configure_callbacks")
    vars(module)["configure_callbacks"] = list
    try:
        yield
    finally:
        del vars(module)["configure_callbacks"]
        if own is not None:
            vars(module)["configure_callbacks"] = own


def _plain_trainer(trainer: Trainer, local: LocalTraining, tuner: Callback) -> Trainer:
    device = trainer.strategy.root_device
    return inner_trainer(
        device,
        [LossAdaptation(), tuner],
        outer=trainer,
        max_epochs=1000,  # Lightning's default: the tuner counts steps
        precision=resolve_precision(local, trainer.precision, device),
        gradient_clip_val=local.gradient_clip_val,
        gradient_clip_algorithm=local.gradient_clip_algorithm if local.gradient_clip_val else None,
        accumulate_grad_batches=local.accumulate_grad_batches,
        default_root_dir=trainer.default_root_dir,
    )
