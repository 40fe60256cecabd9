"""Tell which sites with an order have been silent for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime

from fl_lightning.compat.flower_server import Node

_FIRST = 60.0
"""The seconds of silence of which the first line tells; the next ones come after three times as long, and at least hourly."""
_HOUR = 3600.0


class SilenceWatch:
    """Print a line when a site falls silent, now and then while it is, and when it is back.

    Args:
        patience: the seconds of silence after which a site has failed.
        say: prints a line.
    """

    def __init__(self, patience: float, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> None:
        self._patience, self._say = patience, say
        self._next: dict[str, float] = {}  # by name, the seconds of silence of which the next line tells
        self._heard: dict[str, float] = {}  # of the silent ones, when they were heard last

    def look(self, nodes: Iterable[Node]) -> None:
        """Look at the sites that have an order."""
        now = time.time()
        for node in nodes:
            silent, due = now - node.heard, self._next.get(node.name, _FIRST)
            if silent >= due:
                self._next[node.name] = silent + min(2 * silent, _HOUR)
                self._heard[node.name] = node.heard
                self._say(
                    f"Site {node.name} has given no sign of life since {_at(node.heard)} ({_span(silent)}). Its order waits "
                    f"until {_at(node.heard + self._patience)}."
                )
            elif silent < _FIRST and node.name in self._heard:
                since = self._heard.pop(node.name)
                del self._next[node.name]
                self._say(f"Site {node.name} is back after {_span(now - since)}.")


def _at(moment: float) -> str:
    return datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")


def _span(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
