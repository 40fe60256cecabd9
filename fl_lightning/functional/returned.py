"""Check vectors that classes of users return, which PyTorch would otherwise broadcast or cut without an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError


def require_vector(value: object, size: int, source: str, remedy: str, dtype: torch.dtype | None = None) -> None:
    """Reject anything but a tensor of shape (size,).

    Args:
        value: the returned value.
        size: the length that is needed.
        source: the method and the verb, such as 'MyAttack.forge returned'.
        remedy: the fix, a sentence.
        dtype: the dtype that is needed; None for any.

    Raises:
        ConfigurationError: naming the method, the value, and what is needed.
    """
    if isinstance(value, Tensor) and value.shape == (size,) and dtype in (None, value.dtype):
        return
    kind = "" if dtype is None else f"{_short(dtype)} "
    raise ConfigurationError(f"{source} {described(value)}, but a {kind}tensor of shape ({size},) is needed. {remedy}")


def as_number(value: Any, source: str, remedy: str) -> float:
    """Return a number, also from a tensor of one number.

    Args:
        value: the returned value.
        source: the method and the verb, as in :func:`require_vector`.
        remedy: the fix, a sentence.

    Raises:
        ConfigurationError: naming the method and the value.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigurationError(f"{source} {described(value)}, but must return a number. {remedy}") from None


def described(value: object) -> str:
    """Return a returned value in words: its shape and dtype, or its class."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} in {_short(value.dtype)}"
    return "None" if value is None else f"an object of the class {type(value).__name__}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
