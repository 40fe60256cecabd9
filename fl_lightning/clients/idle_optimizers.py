"""Let hooks of validation find the module's own optimizers and schedules where none of them trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.compat.lightning import configured


class IdleOptimizers:
    """Answer ``self.optimizers()`` and ``self.lr_schedulers()`` as a Trainer that fits the module would at its start.

    Validation may read a rate or step a schedule. Clients' optimizers are in their turns, so these have no effect, which a
    warning says once.

    Args:
        module: the module.
        own: a context in which the module has its own ``configure_optimizers``; None if it always has.
    """

    def __init__(self, module: LightningModule, own: Callable[[], Any] | None = None) -> None:
        self._module, self._own = module, own
        self._found: tuple[list[Any], list[Any]] | None = None

    def _configured(self) -> tuple[list[Any], list[Any]]:
        if self._found is None:
            with nullcontext() if self._own is None else self._own():
                answer: Any = self._module.configure_optimizers() or []
                self._found = configured(answer, self._module)
            rank_zero_warn(
                f"The validation of {type(self._module).__name__} reads its optimizers or schedules. They are those of the "
                "first step and train nothing, because clients' schedules advance in their own turns. To lower the rate over "
                "rounds, set 'federation.local.lr_decay', or let the schedule follow a metric of training."
            )
        return self._found

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizer, or all of them if there are several; see :meth:`LightningModule.optimizers`."""
        found = self._configured()[0]
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """Return the scheduler, all of them if there are several, or None; see :meth:`LightningModule.lr_schedulers`."""
        found = [config.scheduler for config in self._configured()[1]]
        return found[0] if len(found) == 1 else found or None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Replace the module's methods within the context."""
        attributes = vars(self._module)
        attributes["optimizers"], attributes["lr_schedulers"] = self.optimizers, self.lr_schedulers
        try:
            yield
        finally:
            for name in ("optimizers", "lr_schedulers"):
                attributes.pop(name, None)
