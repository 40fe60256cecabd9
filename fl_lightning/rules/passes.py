"""Let a rule read a client's batches: the outputs of its module's parts, and further passes with other tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.func import functional_call

from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.seeding import RandomNumbers
from fl_lightning.types import Snapshot

_INTERNAL = vars(nn.Module()).keys() - {"training"}
_CONTAINERS = (list, dict, set, deque)
_CHANGEABLE = (*_CONTAINERS, Tensor, np.ndarray, torch.Generator)


class LocalModel:
    """Give a rule the client's complete model, as at the start of its turn.

    Args:
        module: the clients' module, with that model.
        state: the view of its tensors.

    Attributes:
        parameters: the names of the trained parameters, in order.
    """

    def __init__(self, module: LightningModule, state: ModelState) -> None:
        self._module, self._state = module, state
        self.parameters: Sequence[str] = state.names()[0]

    def part(self, name: str, setting: str) -> str:
        """Return the full name of a part of the module.

        Args:
            name: the full name or its end after a dot.
            setting: the setting that contains the name, for the message.

        Raises:
            ConfigurationError: unless exactly one part matches; it suggests names that are near.
        """
        known: list[str] = [own for own, _ in self._module.named_modules() if own]
        found = [own for own in known if own == name] or [own for own in known if own.endswith(f".{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigurationError(
                f"'{setting}' is '{name}', which is the name of {len(found)} parts of {type(self._module).__name__}: "
                f"{', '.join(found)}. Write the full name of one."
            )
        short = {".".join(own.split(".")[start:]) for own in known for start in range(own.count(".") + 1)}
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise ConfigurationError(
            f"'{setting}' is '{name}', but {type(self._module).__name__} has no such part.{did_you_mean(name, short)} It has: "
            f"{shown}."
        )

    def tensors(
        self, parameters: Tensor | None = None, buffers: Tensor | None = None, counters: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers by name, some of them with other values.

        Args:
            parameters: the trained parameters, shape (p,).
            buffers: the averaged buffers, shape (d - p,).
            counters: the integer buffers, shape (c,).
        """
        now = self._state.tensors() | self._state.held_tensors()
        found = {name: tensor.clone() for name, tensor in now.items()}
        for vector, names in zip((parameters, buffers, counters), self._state.names()[:3], strict=True):
            if vector is not None:
                pieces = torch.split(vector, [found[name].numel() for name in names])
                for name, piece in zip(names, pieces, strict=True):
                    found[name].copy_(piece.view_as(found[name]))
        return found

    def snapshot(self, tensors: Mapping[str, Tensor]) -> Snapshot:
        """Return the trained parameters and the buffers among such tensors as a model."""
        parameters, floats, counters, _ = self._state.names()
        vector = torch.cat([tensors[name].detach().reshape(-1) for name in (*parameters, *floats)])
        counted = [tensors[name].reshape(-1).long() for name in counters]
        return Snapshot(vector, torch.cat(counted) if counted else torch.zeros(0, dtype=torch.int64, device=vector.device))


@dataclass(frozen=True)
class Pass:
    """Hold what ``training_step`` computed for a batch.

    Attributes:
        loss: the loss, a scalar; None if the module skips the batch.
        outputs: the outputs of the parts in ``ClientRule.listens``, by name, each of shape (N, ...); those of several calls
            follow one another.
    """

    loss: Tensor | None
    outputs: Mapping[str, Tensor]


class _Call(nn.Module):
    """Call ``training_step`` as a module, so that ``functional_call`` can swap parameters and buffers."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module, self.step = module, module.training_step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of ``training_step``."""
        return self.step(*args, **kwargs)


class ListeningStep:
    """Stand in for a module's ``training_step`` during a fit, and add the terms of rules to its loss.

    Args:
        module: the clients' module.
        parameters: its trained parameters.
        rules: the rules that read batches, with their terms.

    Raises:
        ConfigurationError: if the module returns no loss to which a term could be added.
    """

    def __init__(
        self, module: LightningModule, parameters: Sequence[Tensor], rules: Sequence[tuple[Any, list[Tensor]]]
    ) -> None:
        self._refuse(module, type(rules[0][0]).__name__)
        self._module, self._parameters, self._rules = module, parameters, rules
        self._former = vars(module).get("training_step")
        self._call = _Call(module)
        # Otherwise functional_call would swap a layer with two names twice, and the second swap would override the first.
        self._ties = len(list(module.named_modules(remove_duplicate=False))) == len(list(module.named_modules()))
        self._heard: dict[str, list[Tensor]] = {name: [] for rule, _ in rules for name in rule.listens}
        self._hooks = [module.get_submodule(name).register_forward_hook(self._listener(name)) for name in self._heard]
        vars(module)["training_step"] = self._standing_in()

    @staticmethod
    def _refuse(module: LightningModule, rule: str) -> None:
        name = type(module).__name__
        if not module.automatic_optimization:
            raise ConfigurationError(
                f"{rule}, a part of the strategy, adds a term to the loss that 'training_step' returns, but {name} optimizes "
                "manually ('automatic_optimization = False'). Use automatic optimization, or another strategy."
            )
        if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
            raise ConfigurationError(
                f"{rule}, a part of the strategy, passes each batch through the module again, but {name}.training_step takes "
                "'dataloader_iter'. Take 'batch', or use another strategy."
            )

    def remove(self) -> None:
        """Give the module its own step back."""
        for hook in self._hooks:
            hook.remove()
        del vars(self._module)["training_step"]
        if self._former is not None:
            vars(self._module)["training_step"] = self._former

    def _listener(self, name: str) -> Any:
        def hear(part: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.dim() < 2:
                what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
                raise ConfigurationError(
                    f"The strategy reads the output of '{name}' of {type(self._module).__name__}, which has the {what}, but it "
                    "needs a tensor of shape (examples, features). Name another part."
                )
            self._heard[name].append(output)

        return hear

    def _standing_in(self) -> Any:
        @wraps(self._call.step)
        def step(*args: Any, **kwargs: Any) -> Any:
            numbers = RandomNumbers.now(self._module.device)
            batch = Batch(self, args, kwargs, numbers, _saved(self._module))
            output = self._call.step(*args, **kwargs)
            own = self._pass(output)
            if own.loss is None:
                return output
            batch.own, loss = own, own.loss
            for rule, terms in self._rules:
                term = rule.loss_term(batch, self._parameters, terms)
                loss = loss if term is None else loss + term
            return {**output, "loss": loss} if isinstance(output, Mapping) else loss

        return step

    def _pass(self, output: Any) -> Pass:
        loss = output.get("loss") if isinstance(output, Mapping) else output
        heard = {name: tensors[:] for name, tensors in self._heard.items()}
        for tensors in self._heard.values():
            tensors.clear()
        if not isinstance(loss, Tensor):
            return Pass(None, {})
        silent = [name for name, tensors in heard.items() if not tensors]
        if silent:
            raise ConfigurationError(
                f"The strategy reads the output of '{silent[0]}' of {type(self._module).__name__}, but 'training_step' does "
                "not call this part. Name a part that it calls."
            )
        return Pass(loss, {name: torch.cat(tensors) if len(tensors) > 1 else tensors[0] for name, tensors in heard.items()})

    def again(self, batch: Batch, tensors: dict[str, Tensor], training: bool) -> Pass:
        """Repeat a step; see :meth:`Batch.again`."""
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        with batch.numbers.replayed(), _begun_again(self._module, batch.before):
            if not training:
                self._module.eval()
            output = functional_call(self._call, named, batch.args, batch.kwargs, tie_weights=self._ties)
        for name in tensors:  # the module may have put another tensor in a buffer's place
            tensors[name] = named[f"module.{name}"]
        return self._pass(output)


class Batch:
    """Give a rule the passes over one batch.

    Args:
        step: the step that repeats them.
        args: the arguments of ``training_step``.
        kwargs: its keyword arguments.
        numbers: the states of the random numbers before the module's own pass.
        before: the module's attributes then.

    Attributes:
        own: the module's own pass.
    """

    own: Pass

    def __init__(self, step: ListeningStep, args: Any, kwargs: Any, numbers: RandomNumbers, before: _Saved) -> None:
        self._step, self.args, self.kwargs, self.numbers, self.before = step, args, kwargs, numbers, before

    def again(self, tensors: dict[str, Tensor], training: bool = True) -> Pass:
        """Repeat ``training_step`` on the same batch with the same random numbers and other parameters and buffers.

        The pass logs nothing, and leaves metrics, attributes and random numbers of the module as they were.

        Args:
            tensors: all parameters and buffers by name, as from :meth:`LocalModel.tensors`. Buffers are updated, as in
                training.
            training: whether the module's parts stay in their modes; otherwise all are in evaluation mode.
        """
        return self._step.again(self, tensors, training)


# ---------------------------------------------------------------- what a further pass leaves alone


_Saved = list[tuple[nn.Module, dict[str, tuple[Any, Any]]]]
"""The attributes of each part, metrics included, with the contents of those that training can change in place."""


@contextmanager
def _begun_again(module: LightningModule, before: _Saved) -> Iterator[None]:
    """Give the module the attributes that it had before its own pass, and silence its log; afterwards, restore what it had."""
    now = _saved(module)
    _set(before)
    for part in module.modules():
        if isinstance(part, LightningModule):
            vars(part).update(log=_ignore, log_dict=_ignore)
    try:
        yield
    finally:
        _set(now)


def _saved(module: LightningModule) -> _Saved:
    return [(part, {name: _copied(value) for name, value in _own(part)}) for part in module.modules()]


def _set(saved: _Saved) -> None:
    for part, attributes in saved:
        for name, _ in _own(part):
            if name not in attributes:
                del vars(part)[name]
        for name, (value, content) in attributes.items():
            vars(part)[name] = value
            _restore(value, content)


def _own(part: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(part).items() if name not in _INTERNAL]


def _copied(value: Any) -> tuple[Any, Any]:
    """Return a value and its content, if training can change it in place."""
    if isinstance(value, _CONTAINERS):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return value, (value.copy(), [(item, _copied(item)[1]) for _, item in items if isinstance(item, _CHANGEABLE)])
    if isinstance(value, Tensor) and value.grad_fn is None:
        return value, value.detach().clone()
    if isinstance(value, np.ndarray):
        return value, value.copy()
    if isinstance(value, torch.Generator):
        return value, value.get_state()
    return value, None


@torch.no_grad()
def _restore(value: Any, content: Any) -> None:
    """Give a value its content back, in place."""
    if isinstance(value, torch.Generator):
        value.set_state(content)
    elif isinstance(value, Tensor) and content is not None:
        value.copy_(content)
    elif isinstance(value, np.ndarray):
        value[...] = content
    elif isinstance(value, _CONTAINERS):
        copy, inner = content
        value.clear()
        value.extend(copy) if isinstance(value, list | deque) else value.update(copy)
        for item, own in inner:
            _restore(item, own)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Log nothing."""
