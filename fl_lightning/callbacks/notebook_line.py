"""One line below a notebook's cell that changes; it needs no widgets."""

from __future__ import annotations

import html
import os
import sys
import time
from typing import Any

_SECONDS = 0.1
"""The shortest time between two changes while clients train."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, and not a copy of it, whose displays the notebook lacks."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython() if ipython is not None else None, "kernel", None)
    return kernel is not None and getattr(getattr(kernel, "session", None), "pid", os.getpid()) == os.getpid()


class NotebookLine:
    """Show a bar with a text, and replace both in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = 0.0

    def show(self, text: str, done: float, total: int | None, at_once: bool = True) -> None:
        """Replace the bar and the text.

        Args:
            text: the text next to the bar.
            done: the finished rounds, with a part of the current one.
            total: the planned rounds; None shows no bar.
            at_once: whether to show it even if the last change was just now.
        """
        now = time.perf_counter()
        if not at_once and now - self._shown < _SECONDS:
            return
        self._shown = now
        from IPython.display import display  # there is one in a notebook only

        bar = "" if total is None else f'<progress max="{total}" value="{done:g}"></progress> '
        content = {"text/plain": text, "text/html": f"<div>{bar}<code>{html.escape(text)}</code></div>"}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, raw=True)
