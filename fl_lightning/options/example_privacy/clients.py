"""Make private optimizer steps (Abadi et al. 2016, DP-SGD) with Opacus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer

from fl_lightning.compat.opacus import LAYER_ATTRIBUTES, forget_samples
from fl_lightning.core.option import ClientContext, ClientData, ClientHooks
from fl_lightning.data.tensor_loader import PoissonBatches
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.keyed_noise import KeyedStream
from fl_lightning.messages import ClientTask


class PrivateSteps(Callback, ClientHooks):
    """Make every optimizer step of a fit private, with any engine.

    Args:
        max_norm: the largest norm of an example's gradient.
        multiplier: returns the noise multiplier, which may be solved at the start of a fit.
        context: the place where the clients train, with the key of the noise and of the random batches.
    """

    def __init__(self, max_norm: float, multiplier: Callable[[], float], context: ClientContext) -> None:
        self._max_norm, self._multiplier, self._secret = max_norm, multiplier, context.secret
        self._hooks: Any = None
        self._optimizer: Any = None
        self._taken: Counter[int] = Counter()
        self._attempts: Counter[tuple[int, int, int]] = Counter()

    @property
    def callbacks(self) -> Sequence[Callback]:
        """Return this object."""
        return (self,)

    def batches(self, task: ClientTask, data: ClientData, full_batch: bool) -> PoissonBatches:
        """Return the batches of a client's next fit, with fresh noise and batches even after a failed attempt."""
        round_idx, client, period = task.round_idx, task.client, task.period
        attempt = self._attempts[round_idx, client, period]
        self._attempts[round_idx, client, period] += 1
        self._client, self._step = client, 0

        def stream(what: str, step: int) -> KeyedStream:
            return self._secret.stream(f"{what} of examples, period {period}", round_idx, client, step, attempt)

        def coins(batch: int, count: int) -> torch.Tensor:
            return stream("coins", batch).uniforms(count)

        self._stream = stream
        self._batches = data.poisson_batches(client, full_batch, coins)
        self._batches.setting = "federation.local.privacy"
        return self._batches

    def counts(self) -> dict[str, dict[int, int]]:
        """Return the number of each client's noisy steps since the last call, including those of failed attempts."""
        taken = dict(self._taken)
        self._taken.clear()
        self._attempts.clear()
        return {"steps": taken}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the layers store each example's gradient.

        Raises:
            ConfigurationError: if the module has no optimizer; of several, Lightning says so itself.
        """
        from opacus.grad_sample import GradSampleHooks
        from opacus.optimizers import DPOptimizer

        if not trainer.optimizers[0].param_groups:
            raise ConfigurationError(
                f"'federation.local.privacy' needs an optimizer, but {type(pl_module).__name__} configures none. Return one, "
                "or remove 'federation.local.privacy'."
            )
        self._detach(pl_module)  # the hooks of a failed fit
        self._layers = [part for part in pl_module.modules() if not vars(part).keys() & {*LAYER_ATTRIBUTES}]
        self._hooks = GradSampleHooks(pl_module, loss_reduction="mean", strict=False)
        norm, noise, expected = self._max_norm, self._multiplier(), self._batches.expected_persons
        self._optimizer = DPOptimizer(
            trainer.optimizers[0], noise_multiplier=noise, max_grad_norm=norm, expected_batch_size=expected
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note whose examples are in the batch."""
        self._persons = self._batches.drawn.popleft()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Clip the gradients and add noise, before anything else changes them.

        Raises:
            ConfigurationError: if a parameter does not contribute to the loss.
        """
        private = self._optimizer
        for parameter in private.params:
            if parameter.grad_sample is None:
                unused = next(name for name, own in pl_module.named_parameters() if own is parameter)
                raise ConfigurationError(
                    f"'federation.local.privacy' needs a gradient for every trainable parameter, but '{unused}' does not "
                    "contribute to the loss. Freeze it (requires_grad_(False)) or remove it."
                )
            if self._persons is None:
                parameter.grad_sample = parameter.grad_sample[:0]
            # Clipping leaves what is not finite, and one such example would show in the model whatever the noise.
            parameter.grad_sample = torch.nan_to_num(parameter.grad_sample, nan=0.0, posinf=0.0, neginf=0.0)
        lengths = {len(parameter.grad_sample) for parameter in private.params}
        if len(lengths) > 1:
            raise ConfigurationError(
                f"'federation.local.privacy' found gradients of {' and '.join(map(str, sorted(lengths)))} examples in one "
                f"batch, because a layer of {type(pl_module).__name__} does not have the batch as its first dimension. Make "
                "the batch the first dimension of each layer's input, or remove 'federation.local.privacy'."
            )
        self._join_persons(private.params)
        private.clip_and_accumulate()
        self._add_noise(private.params)
        private.scale_grad()
        for parameter in private.params:
            parameter.grad_sample = parameter.summed_grad = None

    def _join_persons(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradients of a person's examples by their mean, so that clipping bounds the influence of the person.

        Noise for a person with several examples would otherwise be too small by their number.
        """
        if self._persons is None or len(torch.unique(self._persons)) == len(self._persons):
            return
        persons = self._persons.to(parameters[0].device)
        counts = torch.bincount(persons)
        for parameter in parameters:
            samples: Any = parameter.grad_sample  # type: ignore[attr-defined]
            sums = samples.new_zeros(len(counts), *samples.shape[1:]).index_add_(0, persons, samples)
            parameter.grad_sample = sums / counts.view(-1, *[1] * (samples.dim() - 1))  # type: ignore[attr-defined]

    def _add_noise(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add noise as in Opacus's ``add_noise``, but drawn from the key instead of torch's generator."""
        self._taken[self._client] += 1  # before the noise is drawn
        sizes = [parameter.numel() for parameter in parameters]
        drawn = self._stream("noise", self._step).normals(sum(sizes))
        self._step += 1
        drawn *= self._multiplier() * self._max_norm
        for parameter, noise in zip(parameters, torch.split(drawn, sizes), strict=True):
            parameter.grad = parameter.summed_grad + noise.view_as(parameter).to(parameter.summed_grad)  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the hooks from the module."""
        self._detach(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the hooks from the module."""
        self._detach(pl_module)

    def _detach(self, module: LightningModule) -> None:
        if self._hooks is not None:
            self._hooks.remove_hooks()
            forget_samples(module, self._layers)
        self._hooks = self._optimizer = None
