"""One training step of many clients at once: their losses and gradients by ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import Metric, MetricCollection

from fl_lightning.clients.engines.client_stack import Tensors
from fl_lightning.clients.engines.log_recorder import LogRecorder
from fl_lightning.clients.engines.stacked_batches import StackedBatch
from fl_lightning.clients.engines.stacked_dropout import MaskSpec, StackedDropout
from fl_lightning.errors import ConfigurationError

_NO_REPLY = object()


class _Notes:
    """What a training step logged and gave to metrics, to be repeated for each client afterwards."""

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self.calls: list[tuple[Any, str, Any, dict[str, Any]]] = []
        self._metrics = list(_outermost_metrics(module))

    def __enter__(self) -> _Notes:
        self.calls = []
        vars(self._module)["log"] = self._log
        self._before = [(vars(metric), vars(metric).get("update")) for metric in self._metrics]
        for metric in self._metrics:
            vars(metric)["update"] = self._note(metric, "update")
            vars(metric)["forward"] = self._note(metric, "forward")
        return self

    def __exit__(self, *_: Any) -> None:
        vars(self._module).pop("log")
        for attributes, update in self._before:
            del attributes["forward"], attributes["update"]
            if update is not None:  # torchmetrics wraps it for each instance
                attributes["update"] = update

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if value is _NO_REPLY:
            raise ConfigurationError(
                f"'{name}' logs what a metric's call gives back, which stacked clients do not have yet. Log the metric itself: "
                f"self.log('{name}', self.metric)."
            )
        self.calls.append((None, "log", (name, value, *args), kwargs))

    def _note(self, metric: Any, method: str) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((metric, "update", args, kwargs))
            return None if method == "update" else _NO_REPLY

        return note


def _outermost_metrics(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if isinstance(child, Metric | MetricCollection) else _outermost_metrics(child)
    return found


class _Step(nn.Module):
    """Calls ``training_step``, so that ``functional_call`` can put other parameters and buffers in place."""

    def __init__(self, module: LightningModule, takes_index: bool, context: Callable[[], Any]) -> None:
        super().__init__()
        self.module = module
        self._takes_index, self._context = takes_index, context

    def forward(self, batch: Any, batch_idx: int, buffers: Sequence[str]) -> tuple[Any, Tensors]:
        """The step's output, and the buffers after it."""
        with self._context():
            output = self.module.training_step(batch, batch_idx) if self._takes_index else self.module.training_step(batch)
        after = dict(self.named_buffers())
        return output, {name: after[name] for name in buffers}


class StackedStep:
    """Losses and gradients of a stack of clients for one batch each.

    Args:
        module: the clients' module.
        context: in which the step runs, for the precision.
        compiled: compile each shape of stack and batch once.
    """

    def __init__(self, module: LightningModule, context: Callable[[], Any], compiled: bool = False) -> None:
        self._module = module
        self._step = _Step(module, is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2), context)
        self._compiled = compiled
        self._notes = _Notes(module)
        self.unused: set[str] = set()
        self._masks: dict[Any, list[MaskSpec]] = {}
        self._graphs: dict[Any, tuple[Callable[..., Any], list[Any]]] = {}

    def masks(self, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int) -> list[MaskSpec]:
        """What dropout needs for such a batch; found by trying once, as is which parameters the loss does not reach.

        Raises:
            ConfigurationError: if the module's step cannot be stacked.
        """
        key = _shapes(parameters), batch.key
        if key not in self._masks:
            mode = StackedDropout(None)
            own = {name: tensor.clone() for name, tensor in buffers.items()}

            def forward(mine: Tensors, theirs: Tensors, leaves: list[Tensor]) -> Tensor:
                return self._call(mine, theirs, batch.rebuild(leaves), batch_idx, mode)[0]

            try:
                with torch.no_grad(), self._notes:
                    vmap(forward)(parameters, own, batch.leaves)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0].rstrip(".")
                raise ConfigurationError(
                    f"The training_step of {type(self._module).__name__} cannot be stacked: {reason}. Set "
                    "'federation.local.engine' to 'fabric' or 'trainer'."
                ) from error
            self._masks[key] = mode.specs
            self._find_unused(parameters, own, batch, batch_idx)
        return self._masks[key]

    def _find_unused(self, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int) -> None:
        """Autograd gives such parameters no gradient, and optimizers then leave them; ``torch.func`` would give zeros."""
        first = {name: tensor[0].detach().requires_grad_() for name, tensor in parameters.items()}
        own = {name: tensor[0].clone() for name, tensor in buffers.items()}
        with torch.enable_grad(), self._notes:
            whole = batch.rebuild([leaf[0] for leaf in batch.leaves])
            loss = self._call(first, own, whole, batch_idx, StackedDropout(None))[0]
        found = torch.autograd.grad(loss, list(first.values()), allow_unused=True) if loss.requires_grad else []
        self.unused = {name for name, gradient in zip(first, found, strict=False) if gradient is None}

    def _call(
        self, parameters: Tensors, buffers: Tensors, batch: Any, batch_idx: int, mode: StackedDropout
    ) -> tuple[Tensor, Any]:
        state = {f"module.{name}": tensor for name, tensor in (parameters | buffers).items()}
        names = [f"module.{name}" for name in buffers]
        with mode:
            output, after = functional_call(self._step, state, (batch, batch_idx, names))
        loss = output["loss"] if isinstance(output, dict) else output
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                f"The training_step of {type(self._module).__name__} gives no loss, which stacked clients cannot skip. Set "
                "'federation.local.engine' to 'trainer'."
            )
        return loss, {name.removeprefix("module."): tensor for name, tensor in after.items()}

    def gradients(
        self,
        parameters: Tensors,
        buffers: Tensors,
        batch: StackedBatch,
        batch_idx: int,
        masks: list[Tensor],
        scale: float,
    ) -> tuple[Tensors, Tensor, Tensors, list[Any]]:
        """One step of K clients.

        Args:
            parameters: to differentiate by, each of shape (K, ...).
            buffers: each of shape (K, ...).
            batch: of all K.
            batch_idx: from 0.
            masks: for dropout, each of shape (K, ...).
            scale: on the loss.

        Returns:
            Gradients of shape (K, ...); unscaled losses, shape (K,); the buffers afterwards; what was logged, for
            :func:`replay`.
        """

        def objective(mine: Tensors, own: Tensors, leaves: list[Tensor], drawn: list[Tensor]) -> tuple[Tensor, Any]:
            loss, after = self._call(mine, own, batch.rebuild(leaves), batch_idx, StackedDropout(drawn))
            tensors, kept[:] = _tensors_of(self._notes.calls)
            return loss * scale if scale != 1 else loss, (loss.detach(), after, tensors)

        kept: list[Any] = []
        key = _shapes(parameters), batch.key, scale
        stacked = vmap(grad_and_value(objective, has_aux=True))
        arguments = (parameters, buffers, batch.leaves, masks)
        with self._notes:
            if not self._compiled:
                gradients, (_, (losses, after, tensors)) = stacked(*arguments)
            else:
                if key not in self._graphs:
                    own = {name: tensor.clone() for name, tensor in buffers.items()}
                    graph: Callable[..., Any] = make_fx(stacked)(parameters, own, batch.leaves, masks)
                    self._graphs[key] = (torch.compile(graph, dynamic=False), kept)
                graph, kept = self._graphs[key]
                gradients, (_, (losses, after, tensors)) = graph(*arguments)
        return gradients, losses, after, [kept, tensors]


def _tensors_of(calls: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """The tensors in what was noted, and the rest: the former leave vmap, the latter are the same for all clients."""
    leaves, spec = tree_flatten([(args, kwargs) for _, _, args, kwargs in calls])
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tensors, [[call[:2] for call in calls], rest, [isinstance(leaf, Tensor) for leaf in leaves], spec]


def replay(noted: list[Any], position: int, recorder: LogRecorder) -> None:
    """Repeat for one client of the stack what its step logged and gave to metrics."""
    (calls, rest, is_tensor, spec), tensors = noted
    own = iter(tensors)
    leaves = [next(own)[position] if flag else leaf for flag, leaf in zip(is_tensor, rest, strict=True)]
    for (metric, _), (args, kwargs) in zip(calls, tree_unflatten(leaves, spec), strict=True):
        if metric is None:
            recorder.log(*args, **kwargs)
        else:
            metric.update(*args, **kwargs)


def _shapes(tensors: Tensors) -> Any:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
