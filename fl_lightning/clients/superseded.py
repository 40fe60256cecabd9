"""Find the files of client state that neither the run nor a checkpoint needs, at a cost that grows with the round's clients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from torch import Tensor

from fl_lightning.clients.state_index import StateIndex
from fl_lightning.clients.stored_state import ClientFiles, StoredState

FILES = "files"
"""The key of the files among the clients in a checkpoint."""


class References:
    """Tell to which files a checkpoint refers.

    Args:
        state: the state of the clients' memory in the checkpoint.
        read_index: reads the file of an index; of None, returns an empty one.

    Raises:
        CheckpointError: if the index cannot be read.
    """

    def __init__(self, state: Mapping[Any, Any], read_index: Callable[[StoredState | None], StateIndex]) -> None:
        self._recent, self._index_file = files_in(state)
        self._in_memory = state.keys() - {FILES}
        self._index = read_index(self._index_file)

    def __contains__(self, file: str) -> bool:
        client = client_of(file)
        if client is None:
            return self._index_file is not None and file == self._index_file.file
        found = None if client in self._in_memory else self._recent.get(client) or self._index.get(client)
        return found is not None and found.file == file


class Superseded:
    """Collect files that may no longer be needed, and delete those that are not.

    A file that a checkpoint needs is looked at again when that checkpoint is gone, so that a round looks at no others.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        """The files that changes of this round replaced, and the bytes that each takes."""
        self._needed: dict[Hashable, dict[str, int]] = {}  # those that a checkpoint needs
        self._all_seen = False
        self.older_bytes = 0
        """The bytes of files that only checkpoints need, as the first rank found after the previous round."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of all files that the run itself does not need."""
        return self.older_bytes + sum(self.files.values())

    def add(self, replaced: Any) -> None:
        """Add the file of a state that was replaced, if it is in a file."""
        if isinstance(replaced, StoredState):
            self.files[replaced.file] = replaced.nbytes

    def discard(self, restored: Any) -> None:
        """Remove the file of a state that is in use again."""
        if isinstance(restored, StoredState):
            self.files.pop(restored.file, None)

    def sweep(self, files: ClientFiles, is_live: Callable[[str], bool], checkpoints: Mapping[Hashable, References]) -> None:
        """Delete the files that are not needed: of all files in the first round, and then of those that were replaced."""
        if not self._all_seen:
            self.files |= files.all()
            self._all_seen = True
        for gone in self._needed.keys() - checkpoints.keys():
            self.files |= self._needed.pop(gone)
        for file, size in self.files.items():
            if is_live(file):
                continue
            holder = next((key for key, references in checkpoints.items() if file in references), None)
            if holder is None:
                files.delete(file)
            else:
                self._needed.setdefault(holder, {})[file] = size
        self.end_round(sum(sum(needed.values()) for needed in self._needed.values()))

    def end_round(self, older_bytes: int) -> None:
        """Note the bytes of the files that only checkpoints need, after the first rank deleted the others."""
        self.files, self.older_bytes = {}, older_bytes


def files_in(state: Mapping[Any, Any]) -> tuple[StateIndex, StoredState | None]:
    """Return the files that a checkpoint lists itself, as a copy, and that of the index of all others, if there is one."""
    if FILES not in state:
        return StateIndex.of({}), None
    recent = {name: one.clone() if isinstance(one, Tensor) else one for name, one in state[FILES]["recent"].items()}
    return StateIndex.from_plain(recent), next((StoredState(**one) for one in state[FILES]["index"]), None)


def client_of(file: str) -> int | None:
    """Return the client whose state a file holds; None for an index and for what was not completely written."""
    number = file.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else None
