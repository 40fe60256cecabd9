"""Keep the hooks that training registers in a client's turn from staying for the next one."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from fl_lightning.compat.torch import Hooks, hooks_of, parameters_of, parts_of


class HookRegisters:
    """Remember the hooks of a module's parts and on the gradients of its parameters.

    Args:
        module: the clients' module, before the first turn.
    """

    def __init__(self, module: nn.Module) -> None:
        owners: list[nn.Module | nn.Parameter] = [*parts_of(module).values(), *parameters_of(module).values()]
        self._before: list[tuple[weakref.ref[Any], list[Hooks]]] = [
            (weakref.ref(owner), [dict(register or {}) for register in hooks_of(owner)]) for owner in owners
        ]

    def restore(self) -> None:
        """Remove the hooks that turns have registered, and register those again that they have removed."""
        for reference, before in self._before:
            owner = reference()
            if owner is None:  # the module builds its layers again in each turn
                continue
            for now, then in zip(hooks_of(owner), before, strict=True):
                if now is not None and now.keys() != then.keys():
                    now.clear()
                    now.update(then)
