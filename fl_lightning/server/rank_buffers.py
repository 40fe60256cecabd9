"""Keep the server's buffers the same on all ranks, although each rank validates a part of the set."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.compat.torch import times_changed
from fl_lightning.functional.digest import digest
from fl_lightning.functional.model_state import ModelState
from fl_lightning.utilities.collectives import Collectives

Changes = dict[str, tuple[int, float]]


class RankBuffers:
    """Find buffers that a rank's validation has changed, and give every rank those of the first one.

    Args:
        server: the server's view of the module.
        comm: the ranks.
    """

    def __init__(self, server: ModelState, comm: Collectives) -> None:
        self._server, self._comm = server, comm
        self._known: Changes | None = None

    def note(self) -> None:
        """Remember the buffers at the end of a round, when they are the same on all ranks."""
        if self._comm.size > 1:
            self._known = _changes(self._buffers())

    def agree(self, name: str) -> None:
        """Give every rank the first one's buffers if they differ, with a warning.

        Args:
            name: the name of the module's class.
        """
        buffers = self._buffers() if self._comm.size > 1 else {}
        if not buffers:
            return
        now = _changes(buffers)
        changed = [path for path in buffers if self._known is None or self._known.get(path) != now[path]]
        found = self._comm.gather(digest({path: buffers[path] for path in changed}) if changed else "")
        if len(set(found)) == 1:
            return
        held = {path: tensor.cpu() for path, tensor in buffers.items()} if self._comm.rank == 0 else {}
        for path, tensor in self._comm.gather(held)[0].items():
            buffers[path].copy_(tensor)
        rank_zero_warn(
            f"Validation changed the buffer {', '.join(map(repr, changed))} of {name}. Each rank validates a part of the set, "
            "so the ranks had different values, of which the first rank's count: the result is not that of a run on one rank. "
            "Change buffers in training only ('if self.training')."
        )

    def _buffers(self) -> dict[str, Tensor]:
        own, (_, *kinds) = self._server.tensors(), self._server.names()
        return {path: own[path] for names in kinds for path in names}


def _changes(tensors: dict[str, Tensor]) -> Changes:
    return {path: (tensor.data_ptr(), times_changed(tensor)) for path, tensor in tensors.items()}
