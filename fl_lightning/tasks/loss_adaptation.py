"""Adapt losses after each validation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError
from fl_lightning.losses.adaptive import AdaptiveLoss, adapted_buffers
from fl_lightning.metrics.update import update_metric


class LossAdaptation(Callback):
    """Adapt each :class:`~fl_lightning.AdaptiveLoss` of a module after each validation within ``fit``.

    The sanity check does not count. The tasks of this package add this callback themselves, and the orchestrator adds it for
    any other module. Without a federation, pass it to the Trainer together with your own module.
    """

    def __init__(self) -> None:
        self._watched: list[RemovableHandle] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reject a loss that would never see a validation.

        Raises:
            ConfigurationError: if validation is disabled, or a buffer of the server's is missing; the message names the loss.
        """
        for part in _adaptive(pl_module):
            adapted_buffers(part)
            if not trainer.enable_validation:
                raise ConfigurationError(
                    f"{type(part).__name__} adapts to {_in_words(part.signal)} on the server's validation set, but there is no "
                    "validation set. Add a 'val_dataloader' to the datamodule and keep 'trainer.limit_val_batches' above 0, or "
                    "use another loss, such as CrossEntropy or torch.nn.MSELoss."
                )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the calls of the losses."""
        self._release()
        if trainer.state.fn is not TrainerFn.FITTING or trainer.sanity_checking:
            return
        for part in _adaptive(pl_module):
            if isinstance(part.signal, Metric):
                part.signal.to(pl_module.device).reset()
                self._watched.append(part.register_forward_hook(partial(_watch, part.signal)))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the losses whose signal is a metric of (outputs, target).

        Raises:
            ConfigurationError: if the module has not called the loss in validation.
        """
        if not self._watched:
            return
        self._release()
        for part in _adaptive(pl_module):
            if isinstance(part.signal, Metric):
                if not part.signal.update_called:
                    raise ConfigurationError(
                        f"{type(part).__name__} adapts to the outputs and targets that it gets in validation, but "
                        f"{type(pl_module).__name__} did not call it. Compute the loss in 'validation_step': "
                        "self.loss(outputs, target)."
                    )
                _adapt(part, part.signal.compute())
                pl_module.log_dict(dict(part.figures()), batch_size=1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the losses whose signal is a metric that the module logs; all of these are known only now.

        Raises:
            ConfigurationError: if the module does not log a metric of that name.
        """
        if trainer.state.fn is not TrainerFn.FITTING or trainer.sanity_checking:
            return
        for part in _adaptive(pl_module):
            if isinstance(part.signal, str):
                _adapt(part, _figure(part, trainer, pl_module))
                figures = {name: torch.as_tensor(value).detach() for name, value in part.figures().items()}
                trainer.callback_metrics.update(figures)
                rounds = {"round": float(trainer.current_epoch)} if "round" in trainer.callback_metrics else {}
                for logger in trainer.loggers:
                    logger.log_metrics({name: float(x) for name, x in figures.items()} | rounds, step=trainer.global_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching."""
        self._release()

    def _release(self) -> None:
        for handle in self._watched:
            handle.remove()
        self._watched = []


def _adaptive(module: LightningModule) -> list[AdaptiveLoss]:
    return [part for part in module.modules() if isinstance(part, AdaptiveLoss) and _signal(part) is not None]


def _signal(loss: AdaptiveLoss) -> Metric | str | None:
    try:
        return loss.signal
    except AttributeError as error:
        raise ConfigurationError(
            f"{type(loss).__name__} has no signal to adapt to. Set self.signal in its __init__ to a torchmetrics metric "
            "of (outputs, target), or to the name of a metric that the module logs in validation."
        ) from error


def _adapt(loss: AdaptiveLoss, signal: Tensor) -> None:
    """Adapt a loss, and warn if that changes attributes, which neither clients nor checkpoints get."""
    before = dict(vars(loss))
    loss.adapt(signal)
    changed = [name for name, value in vars(loss).items() if before.get(name, loss) is not value]
    if changed:
        rank_zero_warn(
            f"'adapt' of {type(loss).__name__} changed the attribute '{changed[0]}', which clients do not receive and "
            f"checkpoints do not contain. Make it a buffer: self.register_buffer('{changed[0]}', torch.tensor(...)) in "
            f"'__init__', server_buffers = ('{changed[0]}',) in the class, and self.{changed[0]}.fill_(...) in 'adapt'."
        )


@torch.no_grad()
def _watch(metric: Metric, loss: AdaptiveLoss, inputs: tuple[Any, ...], output: Tensor) -> None:
    if loss.observed:
        update_metric(metric, inputs[0], inputs[1], "model.loss.metric")


def _figure(loss: AdaptiveLoss, trainer: Trainer, module: LightningModule) -> Tensor:
    assert isinstance(loss.signal, str)
    found = trainer.callback_metrics.get(loss.signal)
    if found is None:
        others = ("federation/", "client_", "train_", "round", "epoch")
        known = ", ".join(sorted(n for n in trainer.callback_metrics if not n.startswith(others))) or "nothing"
        raise ConfigurationError(
            f"{type(loss).__name__} adapts to {loss.signal!r}, which {type(module).__name__} does not log in validation. It "
            f"logs: {known}. Set the loss's signal to one of these, or to a torchmetrics metric of (outputs, target)."
        )
    return found


def _in_words(signal: Metric | str | None) -> str:
    return f"'{signal}'" if isinstance(signal, str) else f"the {type(getattr(signal, 'metric', signal)).__name__}"
