"""Tell a server what it may know of a site's errors, and write the rest to the site's log."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from pathlib import Path

from fl_lightning.errors import ConfigurationError, ProtocolError, WireError
from fl_lightning.flower.envelope import printable
from fl_lightning.flower.site.recipe import RefusedError


class SiteErrors:
    """Tell errors by a code, under which the site's staff find the text in ``errors.log``.

    Args:
        folder: the site's folder.
        say: prints a line for the site's staff.
        uniform: whether to tell all errors alike, because their class may depend on single rows.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], uniform: bool) -> None:
        self._path, self._say, self._uniform = folder / "errors.log", say, uniform

    def told(self, error: BaseException) -> str:
        """Return what the server learns of an error.

        The text of an error is told only if it is about the server's own message, or one of a peer that it passed on.
        """
        if isinstance(error, RefusedError | WireError | ProtocolError):
            self._say(f"Refused: {error}")
            return f"{type(error).__name__}: {printable(error)}"
        return self.coded(error)

    def coded(self, error: BaseException) -> str:
        """Return a code, and write the error to the log under it."""
        kind, code = type(error).__name__, secrets.token_hex(4)
        name = "An error" if self._uniform else kind
        text = "".join(traceback.format_exception(error))
        lines = "\n".join(map(printable, text.splitlines()))
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"--- code {code}\n{lines}\n")
        except OSError as full:
            self._say(f"{kind} (code {code}): {error}. It cannot be written to errors.log: {full.strerror}.")
            return f"{name} (code {code})"
        self._say(f"{kind} (code {code}): {f'{error} ' if isinstance(error, ConfigurationError) else ''}See {self._path}.")
        return f"{name} (code {code}; its text is in the site's errors.log)"
