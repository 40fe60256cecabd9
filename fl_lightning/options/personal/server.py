"""Tell the federation which tensors are personal, and give new clients the mean of the others' parts."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import nn

from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_state import ModelState
from fl_lightning.options.personal.settings import PersonalParts, personal_names
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_result import RoundResult
from fl_lightning.strategies.base import Strategy

_SHOWN = 6


class PersonalPartsAtServer(ServerHooks):
    """Keep the personal parts at the clients.

    Args:
        personal: the settings of the parts.
        context: the fit.
    """

    def __init__(self, personal: PersonalParts, context: ServerContext) -> None:
        self._personal, self._context = personal, context
        self._averaged: tuple[str, ...] = ()

    def held(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of the personal parameters and buffers."""
        self._averaged = personal_names(module, self._personal.mean)
        return personal_names(module, self._personal.parts)

    def open(self, federation: Federation) -> None:
        """Print which tensors are personal, and how many bytes of each message this saves.

        Raises:
            ConfigurationError: if nothing is shared, but the clients need something to correct.
        """
        server = federation.server
        own = server.held_tensors()
        if not own:
            return
        if not server.num_parameters and _corrects(federation.strategy):
            raise ConfigurationError(
                f"'federation.personal' matches every parameter, so {type(federation.strategy).__name__} has nothing to "
                "correct. Match fewer parameters, or use FedAvg."
            )
        saved, sent = sum(tensor.nbytes for tensor in own.values()), server.nbytes(upward=True)
        names = ", ".join([*own][:_SHOWN]) + (f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else "")
        rank_zero_info(
            f"Each client keeps {len(own)} tensors for itself: {names}. A message carries {sent:,} bytes instead of "
            f"{sent + saved:,} in each direction ({100 * saved / (sent + saved):.1f} % saved)."
        )

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Let new clients begin with the mean of the others' parts, if they should."""
        if self._averaged:
            self._set_mean(federation.server)
        return {}

    def _set_mean(self, server: ModelState) -> None:
        """Set the server's tensors with which new clients begin to the mean over the clients that have trained.

        The mean is weighted by examples; of counters it is the maximum. Every rank holds the same state, and adds in client
        order.
        """
        own, total = server.held_tensors(), 0.0
        sums = {name: torch.zeros_like(to_float64(own[name])) for name in self._averaged}
        for client, size in enumerate(self._context.data.indices.sizes.tolist()):
            part = self._context.held(client)
            total += size if part else 0.0
            for name in self._averaged if part else ():
                tensor = part[name]
                mine = to_float64(tensor.to(own[name].device))
                if tensor.is_floating_point():
                    sums[name].add_(mine, alpha=size)
                else:
                    torch.maximum(sums[name], mine, out=sums[name])
        if total:
            server.set_held(own | {name: t / total if own[name].is_floating_point() else t for name, t in sums.items()})


def _corrects(strategy: Strategy) -> bool:
    return strategy.client_rule() is not None or strategy.needs_held_parts
