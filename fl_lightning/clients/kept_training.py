"""Pack the state of a client's training that it keeps until its next turn, because it cannot be computed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.errors import ConfigurationError

NAME = "training"
"""The name of the packed state among the tensors that a client stores."""


def pack(state: dict[str, Any]) -> Tensor:
    """Return tensors and plain values as bytes, uint8, shape (n,)."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(content: Tensor) -> dict[str, Any]:
    """Return what :func:`pack` packed, as new tensors on the CPU, since this process may lack the GPU that trained."""
    stored = io.BytesIO(content.numpy().tobytes())
    found: dict[str, Any] = torch.load(stored, map_location="cpu", weights_only=True)
    return found


def optimizer_state(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Return the state of each optimizer: the number of its parameters, and their tensors and numbers.

    Raises:
        ConfigurationError: if an optimizer keeps anything else.
    """
    found = []
    for optimizer in optimizers:
        state = optimizer.state_dict()["state"]
        for values in state.values():
            for name, value in values.items():
                if not isinstance(value, Tensor | int | float | bool | None):
                    raise ConfigurationError(
                        f"{type(optimizer).__name__} keeps a {type(value).__name__} ('{name}') from step to step, but "
                        "'federation.local.optimizer_state' is 'kept', which stores only tensors and numbers. Set it to "
                        "'fresh', or use another optimizer."
                    )
        found.append({"size": _size(optimizer), "state": state})
    return found


def restore_optimizers(kept: Sequence[dict[str, Any]], optimizers: Sequence[Optimizer]) -> None:
    """Give optimizers the state that :func:`optimizer_state` returned.

    Raises:
        ConfigurationError: if the module's optimizers have other parameters now.
    """
    if [own["size"] for own in kept] != [_size(optimizer) for optimizer in optimizers]:
        raise ConfigurationError(
            "The module's optimizers have other parameters than in the client's last turn, but "
            "'federation.local.optimizer_state' is 'kept'. Pass the same parameters in all rounds, or set it to 'fresh'."
        )
    for own, optimizer in zip(kept, optimizers, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": own["state"]})


def _size(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
