"""Compute the losses and gradients of many clients in one training step with ``torch.func``, after a trial of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fl_lightning.clients.stacked.batches import StackedBatch, padded
from fl_lightning.clients.stacked.effects import REMEDY, InPlace, MaskSpec, Notes, StackedDropout, Traces, tensors_of
from fl_lightning.clients.stacked.stack import Tensors
from fl_lightning.compat.torch import buffers_of, parts_of, tree_map
from fl_lightning.errors import EngineError, FederationError


def padded_size(clients: int, largest: int) -> int:
    """Return the number of clients for which to compile a group's graph.

    It depends only on its arguments, because a resumed run must compute with the same graphs as an uninterrupted one.

    Args:
        clients: the number of clients in the group, from 1 to ``largest``.
        largest: the size of a full stack.

    Returns:
        The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... or ``largest``, whichever is smaller: less than 1.5 times ``clients``.
    """
    power = 1 << (clients - 1).bit_length()
    between = power * 3 // 4
    return min(between if clients <= between else power, largest)


Call = Callable[[Tensors, Tensors, Any, int, StackedDropout], tuple[Tensor, Any]]
"""A function of parameters, buffers, batch, batch index and dropout that returns the loss and the new buffers."""


@dataclass(frozen=True)
class Trial:
    """Hold the requirements of a training step for batches of one shape.

    Attributes:
        masks: the masks of dropout, in the order of the calls.
        unused: the parameters that the loss does not depend on: they get no gradient, and optimizers skip them.
        depends_on_time: whether the step reads the epoch or the number of steps, so that every batch needs a new trial.
    """

    masks: list[MaskSpec]
    unused: frozenset[str]
    depends_on_time: bool


def cannot_stack(module: LightningModule, error: Exception) -> EngineError:
    """Return an error that says why a step cannot be stacked, given torch's."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return EngineError(f"Cannot stack the training_step of {type(module).__name__}: {reason}. {REMEDY}")


def _first_client(
    call: Call, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int
) -> tuple[Tensor, list[MaskSpec], frozenset[str]]:
    first = {name: tensor[0].detach().requires_grad_() for name, tensor in parameters.items()}
    own = {name: tensor[0].clone() for name, tensor in buffers.items()}
    mode = StackedDropout(None)
    with torch.enable_grad():
        loss = call(first, own, batch.rebuild([leaf[0] for leaf in batch.leaves]), batch_idx, mode)[0]
    if not loss.requires_grad:
        raise EngineError(f"The loss of training_step has no gradient, so there is nothing to train. {REMEDY}")
    found = torch.autograd.grad(loss, list(first.values()), allow_unused=True)
    unused = frozenset(name for name, gradient in zip(first, found, strict=True) if gradient is None)
    return loss.detach(), mode.specs, unused


_TRANSFORMS = ("vmap", "vjp", "functorch")
"""One of these is in every message of torch about what its transforms do not support."""


class _Step(nn.Module):
    """Call ``training_step`` as a module, so that ``functional_call`` can swap parameters and buffers."""

    def __init__(self, module: LightningModule, context: Callable[[], Any]) -> None:
        super().__init__()
        self.module = module
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        self._context = context

    def forward(self, batch: Any, batch_idx: int, buffers: Sequence[str]) -> tuple[Any, Tensors]:
        """Return the step's output, and the buffers after it."""
        with self._context():
            output = self.module.training_step(batch, batch_idx) if self._takes_index else self.module.training_step(batch)
        after = dict(self.named_buffers(remove_duplicate=False))
        return output, {name: after[name] for name in buffers}


class StackedStep:
    """Compute the losses and gradients of a stack of clients for one batch each.

    Args:
        module: the clients' module.
        context: a function that returns the precision context of the step.
        largest: the largest number of clients in a stack.
        compiled: whether to compile the step, once for each batch shape and padded stack size; ``reduce-overhead`` also
            records CUDA graphs.
        scale: the factor on the loss.
    """

    def __init__(
        self, module: LightningModule, context: Callable[[], Any], largest: int, compiled: bool | str = False, scale: float = 1
    ) -> None:
        self._module, self._scale = module, scale
        self._step = _Step(module, context)
        self._compiled, self._largest = bool(compiled), largest
        self._mode = compiled if isinstance(compiled, str) else None
        self._places = _places(module)
        self._notes, self.traces = Notes(module), Traces(module)
        self._trials: dict[Any, Trial] = {}
        self._graphs: dict[Any, tuple[Callable[..., Any], list[Any]]] = {}

    def recover(self) -> None:
        """Try each shape again after a client's error, but keep the graphs, which hold no client's data."""
        self._trials.clear()
        self._notes = Notes(self._module)

    def trial(self, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int) -> Trial:
        """Return what the step needs for such a batch, from one trial per shape unless it depends on the time.

        Raises:
            EngineError: if the step cannot be stacked.
        """
        key = _shapes(parameters), batch.key
        known = self._trials.get(key)
        if known is None or known.depends_on_time:
            known = self._attempt(parameters, buffers, batch, batch_idx)
            self._trials[key] = known
        if self._compiled and known.depends_on_time:
            raise EngineError(
                f"The training_step of {type(self._module).__name__} reads the epoch, the number of steps or batches, or the "
                "optimizer, which would be compiled as constants. Set 'federation.local.compile' to false."
            )
        return known

    def _attempt(self, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int) -> Trial:
        """Run the step for one client as it is and for all clients with vmap, without training or drawing random numbers.

        Raises:
            EngineError: if the step cannot be stacked, or if stacking would change a client's result.
        """
        module, call = self._module, self._call
        before, watch = self.traces.now(), InPlace(module, parameters, batch.leaves)
        run: Any = module.trainer
        run.note(_time_was_read=False)
        try:
            with self._notes:
                alone, masks, unused = _first_client(call, parameters, buffers, batch, batch_idx)
                later = _first_client(call, parameters, buffers, batch, batch_idx + 1)
                own = {key: tensor.clone() for key, tensor in buffers.items()}

                def forward(mine: Tensors, theirs: Tensors, leaves: list[Tensor]) -> Tensor:
                    return call(mine, theirs, batch.rebuild(leaves), batch_idx, StackedDropout(None))[0]

                with torch.no_grad():
                    together = vmap(forward)(parameters, own, batch.leaves)[0]
        except FederationError:
            raise
        except Exception as error:
            raise cannot_stack(module, error) from error
        watch.refuse()
        self.traces.refuse(before, "The training_step")
        name, tolerance = type(module).__name__, torch.finfo(alone.dtype).eps ** 0.5
        if not torch.allclose(alone, together, tolerance, tolerance, equal_nan=True):
            raise EngineError(
                f"The training_step of {name} returns another loss when it runs again ({float(alone):.6g}, then "
                f"{float(together):.6g}), so it depends on something that stacked clients would share, such as the time. "
                f"{REMEDY}"
            )
        if [spec.key for spec in masks] != [spec.key for spec in later[1]] or unused != later[2]:
            raise EngineError(
                f"The training_step of {name} depends on batch_idx, which stacked clients do not support. {REMEDY}"
            )
        return Trial(masks, unused, bool(run._time_was_read))

    def _call(
        self, parameters: Tensors, buffers: Tensors, batch: Any, batch_idx: int, mode: StackedDropout
    ) -> tuple[Tensor, Any]:
        given = parameters | buffers
        state = {f"module.{place}": given[name] for name in given for place in self._places.get(name, ())}
        names = [f"module.{name}" for name in buffers]
        with mode:
            output, after = functional_call(self._step, state, (batch, batch_idx, names), tie_weights=False)
        self._refuse_split(after)
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, Tensor):
            raise EngineError(
                f"The training_step of {type(self._module).__name__} returns no loss, but stacked clients cannot skip a batch. "
                f"{REMEDY}"
            )
        return loss, {name.removeprefix("module."): tensor for name, tensor in after.items()}

    def _refuse_split(self, after: Tensors) -> None:
        for first, *others in self._places.values():
            for name in others:
                one, other = after.get(f"module.{first}"), after.get(f"module.{name}")
                if other is not None and one is not other:
                    raise EngineError(
                        f"Training replaces one of the buffers '{first}' and '{name}', which are one tensor. {REMEDY}"
                    )

    def gradients(
        self, parameters: Tensors, buffers: Tensors, batch: StackedBatch, batch_idx: int, masks: list[Tensor], trial: Trial
    ) -> tuple[Tensors, Tensor, Tensors, list[Any]]:
        """Compute the gradients of one step of K clients; groups of similar size share a compiled graph.

        Args:
            parameters: the parameters to differentiate, each of shape (K, ...).
            buffers: the buffers, each of shape (K, ...).
            batch: the batch of all K clients.
            batch_idx: the index of the batch, from 0.
            masks: the masks for dropout, each of shape (K, ...).
            trial: the result of the trial for this shape.

        Returns:
            The gradients, each of shape (K, ...), without parameters that the loss does not depend on; the unscaled losses,
            shape (K,); the new buffers; and the logs, for :func:`~fl_lightning.clients.stacked.effects.replay`.
        """
        clients = len(batch.leaves[0])
        rows = padded_size(clients, self._largest) if self._compiled else clients
        if rows != clients:
            parameters, buffers, masks = padded((parameters, buffers, masks), rows)
            batch = batch.padded(rows)
        kept: list[Any] = []

        def objective(
            mine: Tensors, own: Tensors, leaves: list[Tensor], drawn: list[Tensor], index: int = batch_idx
        ) -> tuple[Tensor, Any]:
            self._notes.calls = []
            loss, after = self._call(mine, own, batch.rebuild(leaves), index, StackedDropout(drawn, trial.masks))
            tensors, kept[:] = tensors_of(self._notes.calls)
            return loss * self._scale if self._scale != 1 else loss, (loss.detach(), after, tensors)

        arguments = (parameters, buffers, batch.leaves, masks)
        watch = InPlace(self._module, parameters, batch.leaves)
        with self._notes:
            if self._compiled:
                key = _shapes(parameters), batch.key, tuple(spec.key for spec in trial.masks)
                if key not in self._graphs:
                    self._graphs[key] = self._compile(objective, arguments, batch_idx), kept
                graph, kept = self._graphs[key]
                gradients, (_, (losses, after, tensors)) = self._run(graph, arguments)
            else:
                gradients, (_, (losses, after, tensors)) = self._stacked(objective, arguments)
        watch.refuse()
        found = {name: gradient for name, gradient in gradients.items() if name not in trial.unused}, losses, after
        if rows != clients:
            found = tree_map(lambda tensor: tensor[:clients], found)
        return *found, [kept, tensors]

    def _stacked(self, objective: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Compute a step; torch finds some of what it cannot differentiate under vmap only here, or only in a later batch."""
        try:
            return vmap(grad_and_value(objective, has_aux=True))(*arguments)
        except RuntimeError as error:
            if any(word in str(error) for word in _TRANSFORMS):
                raise cannot_stack(self._module, error) from error
            raise

    def _compile(self, objective: Callable[..., Any], arguments: tuple[Any, ...], batch_idx: int) -> Callable[..., Any]:
        """Compile the step for these shapes; refuse a step that uses its batch_idx, which would become a constant."""
        parameters, buffers, leaves, masks = arguments

        def traced(index: int) -> Any:
            own = {name: tensor.clone() for name, tensor in buffers.items()}

            def of_one(mine: Tensors, theirs: Tensors, batch: list[Tensor], drawn: list[Tensor]) -> tuple[Tensor, Any]:
                return objective(mine, theirs, batch, drawn, index)  # type: ignore[no-any-return]

            return make_fx(vmap(grad_and_value(of_one, has_aux=True)))(parameters, own, leaves, masks)

        try:
            later = traced(batch_idx + 1)
            graph = traced(batch_idx)  # last, so that its records are the ones that remain
        except RuntimeError as error:
            raise EngineError(f"{cannot_stack(self._module, error)} Or set 'federation.local.compile' to false.") from error
        constants = [(one, other) for (_, one), (_, other) in zip(graph.named_buffers(), later.named_buffers(), strict=False)]
        if graph.code != later.code or not all(torch.equal(one, other) for one, other in constants):
            raise EngineError(
                f"The training_step of {type(self._module).__name__} uses its batch_idx, which would be compiled as a "
                "constant. Set 'federation.local.compile' to false."
            )
        return torch.compile(graph, dynamic=False, mode=self._mode)

    def _run(self, graph: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a compiled step. The next run of a CUDA graph overwrites its outputs, which are read later: copy them."""
        if self._mode is None:
            return graph(*arguments)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return tree_map(torch.clone, graph(*arguments))


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Return every place of each tensor by its first name: tied weights have several.

    functional_call would swap a layer that has two names twice, and could not undo it, so its first name alone counts.
    """
    found: dict[int, list[str]] = {}
    for prefix, part in parts_of(module).items():
        own = (*part.named_parameters(recurse=False, remove_duplicate=False), *buffers_of(part).items())
        for name, tensor in own:
            if tensor is not None:
                found.setdefault(id(tensor), []).append(f"{prefix}.{name}".lstrip("."))
    return {names[0]: names for names in found.values()}


def _shapes(tensors: Tensors) -> Any:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
