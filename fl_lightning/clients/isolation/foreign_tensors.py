"""Refuse optimizers that train tensors which the module does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fl_lightning.clients.isolation.python_state import PythonState
from fl_lightning.compat.torch import parameters_of, times_changed
from fl_lightning.errors import ConfigurationError


class ForeignTensors:
    """Remember which tensors of a fit's optimizers are neither parameters nor buffers of the module, nor in its attributes.

    Args:
        module: the clients' module.
        optimizers: the fit's optimizers.
        python: the module's attributes.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Any], python: PythonState) -> None:
        tensors = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
        parameters = {id(parameter) for parameter in parameters_of(module).values()}
        others = [tensor for tensor in tensors if id(tensor) not in parameters]
        known = python.tensors() | {id(buffer) for buffer in module.buffers()} if others else set()
        self._module = module
        self._before = [(tensor, times_changed(tensor)) for tensor in others if id(tensor) not in known]

    def refuse_trained(self) -> None:
        """Refuse the fit if it has changed such a tensor.

        Raises:
            ConfigurationError: with its shape.
        """
        shapes = [tuple(tensor.shape) for tensor, before in self._before if times_changed(tensor) != before]
        if shapes:
            raise ConfigurationError(
                f"The optimizers of {type(self._module).__name__} train {len(shapes)} tensors that it does not contain, the "
                f"first of shape {shapes[0]}, so no client would send them. Register them: layers in 'nn.ModuleList' or "
                "'nn.ModuleDict' instead of a list or dictionary, tensors as 'nn.Parameter'."
            )
