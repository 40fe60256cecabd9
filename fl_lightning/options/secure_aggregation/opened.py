"""Keep the last opened sum on the server's disk, because sites sign no other list for its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.wire import from_bytes, to_bytes


class OpenedSums:
    """Keep one sum of a federation, under the digest of the model from which its round began.

    Args:
        folder: the folder of the fit.
        federation: the id of the federation. Another fit in the folder may begin with the same model.
    """

    def __init__(self, folder: Path, federation: str) -> None:
        self._federation = federation
        self._path, self._name = folder / "opened_sum.bin", folder / "opened_sum.txt"

    def save(self, model: str, delivered: Sequence[int], words: Tensor) -> None:
        """Write a sum instead of the one before."""
        write_whole(self._path, to_bytes({"of": self._key(model), "delivered": sorted(delivered), "words": words}))
        write_whole(self._name, self._key(model).encode())  # so that other rounds need not read the sum

    def load(self, model: str) -> tuple[Tensor, tuple[int, ...]] | None:
        """Return the words of the sum of a model and the clients in it; None if another one was opened last."""
        if not self._name.exists() or self._name.read_text(encoding="utf-8") != self._key(model):
            return None
        found = from_bytes(self._path.read_bytes())
        return (found["words"], found["delivered"]) if found.get("of") == self._key(model) else None

    def clients(self) -> tuple[int, ...] | None:
        """Return the clients of the sum that this federation has opened last; None before the first."""
        if not self._name.exists() or not self._name.read_text(encoding="utf-8").startswith(self._key("")):
            return None
        return tuple(from_bytes(self._path.read_bytes())["delivered"])

    def _key(self, model: str) -> str:
        return f"{self._federation} {model}"
