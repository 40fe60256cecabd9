"""Keep on a site's disk what must outlive a restart: the client's state by round, and its last reply."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fl_lightning.errors import WireError
from fl_lightning.flower.wire.transport import Content
from fl_lightning.utilities.atomic_file import PARTIAL, write_whole
from fl_lightning.utilities.kept_file import damaged
from fl_lightning.wire import from_bytes, to_bytes


def require_id(federation: str) -> None:
    """Refuse the id of a federation that could name a place.

    Raises:
        WireError: if it is not 32 hexadecimal digits.
    """
    if not re.fullmatch(r"[0-9a-f]{32}", federation):
        raise WireError("The federation's id is not 32 hexadecimal digits.")


class SiteStore:
    """Store the state of one site in one federation.

    Args:
        folder: the site's folder.
        federation: the id of the federation, which the server keeps in its checkpoints.

    """

    def __init__(self, folder: Path, federation: str) -> None:
        require_id(federation)
        self._folder = folder / "federations" / federation
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A worker that is killed while it writes leaves such a file; a folder has only one worker.
        for left in self._folder.glob(PARTIAL.format(name="*", process="*")):
            left.unlink()
        for reply in self._folder.parent.glob("*/reply-*"):  # an order of another federation's fit is never repeated
            if reply.parent != self._folder:
                reply.unlink()
        self._written: Content | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the stored state, or None.

        Raises:
            ConfigurationError: if the file is damaged.
        """
        path = self._folder / "state.bin"
        if not path.exists():
            return None
        self._written = path.read_bytes()
        try:
            return dict(from_bytes(self._written))
        except (ValueError, WireError) as error:
            name = self._folder.name
            fix = f"Restore it from a copy, or run 'fl-lightning site withdraw' for {name} and agree again: it begins anew."
            raise damaged(path, fix) from error

    def save(self, state: dict[str, Any], key: str, reply: Content | None) -> None:
        """Store a state and the reply that belongs to it, at once: the state names the reply.

        Args:
            state: the state, as plain values and tensors.
            key: the digest of the request.
            reply: the reply, or None if the request must not be answered from the store.
        """
        if reply is not None:
            write_whole(self._folder / f"reply-{key}", reply)
        content = to_bytes({**state, "answered": key if reply is not None else ""})
        if content != self._written:
            write_whole(self._folder / "state.bin", content)
            self._written = content
        for old in self._folder.glob("reply-*"):  # after the state no longer names it
            if reply is None or old.name != f"reply-{key}":
                old.unlink()

    def reply(self, key: str) -> bytes | None:
        """Return the stored reply to a request, or None."""
        path = self._folder / f"reply-{key}"
        kept = self.load() if path.exists() else None
        return path.read_bytes() if kept is not None and kept.get("answered") == key else None
