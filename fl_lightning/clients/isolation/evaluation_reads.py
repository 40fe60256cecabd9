"""Find the attributes that a module's evaluation reads, from the code of its methods."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

_NOT_THE_USERS = ("torch.", "lightning.", "torchmetrics.", "fl_lightning.")
_HOOKS = ("validation_step", "test_step", "predict_step")


def reads_in_evaluation(part: Any) -> frozenset[str]:
    """Return the names of attributes that a part may read in an evaluation.

    They are those in the code of ``forward``, of the steps and hooks of validation and test, and of the methods of the part
    that these call. What other objects read of the part is not found.
    """
    if not isinstance(part, nn.Module):
        return frozenset()
    begins = ["forward", *_HOOKS] + [
        name for name in dir(type(part)) if name.startswith(("on_validation_", "on_test_", "on_predict_"))
    ]
    waiting = begins if isinstance(part, LightningModule) else ["forward"]
    found: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        function = getattr(type(part), name, None)
        function = function.fget if isinstance(function, property) else function
        if name in seen or not isinstance(function, FunctionType) or function.__module__.startswith(_NOT_THE_USERS):
            continue
        seen.add(name)
        names = set(_attributes_in(function.__code__))
        found |= names
        waiting += names
    return frozenset(found)


def _attributes_in(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes that code loads, also in functions within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield str(instruction.argval)
        if isinstance(instruction.argval, CodeType):
            yield from _attributes_in(instruction.argval)
