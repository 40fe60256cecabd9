"""The command ``fl-lightning algorithms``: list every algorithm with a line, its configuration and its page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from posixpath import normpath

from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.strategies import ALGORITHMS, Algorithm

_PAGES = dict(zip(ALGORITHMS, ("averages", "weights", "robust", "clients", "personal", "asynchronous", "routes"), strict=False))
"""The page of each group in ``docs/algorithms``; the last group has pages of its own."""


def main(arguments: Sequence[str]) -> None:
    """Print the list; an argument keeps the algorithms whose line contains it.

    Args:
        arguments: the arguments after ``algorithms``.

    Raises:
        ConfigurationError: if no line contains it.
    """
    if arguments[:1] in (["-h"], ["--help"]) or len(arguments) > 1:
        print("usage: fl-lightning algorithms [TEXT]    list the algorithms, or those whose line contains the text")
        sys.exit(0 if len(arguments) == 1 else 2)
    wanted = arguments[0] if arguments else ""
    text = listing(wanted)
    if not text:
        names = [one.name for group in ALGORITHMS.values() for one in group]
        raise ConfigurationError(f"No algorithm matches '{wanted}'.{did_you_mean(wanted, names)}")
    print(text)


def listing(wanted: str = "") -> str:
    """Return a line for each algorithm that contains a text, by group; an empty string if no algorithm does."""
    lines: list[str] = []
    for group, algorithms in ALGORITHMS.items():
        rows = [row for one in algorithms if wanted.lower() in (row := _row(group, one)).lower()]
        lines += [f"{group}:", *rows, ""] if rows else []
    run = ["Run one: fl-lightning fit --config NAME. Any module and data: change one block."]
    return "\n".join(lines + run) if lines else ""


def section(group: str, one: Algorithm) -> str:
    """Return where the section of an algorithm is, from ``docs/algorithms``."""
    return one.page or f"{_PAGES[group]}.md#{one.name.lower().replace(' ', '-')}"


def _row(group: str, one: Algorithm) -> str:
    page = normpath(f"docs/algorithms/{section(group, one)}")
    return f"  {one.name:<17} {one.line:<54} {one.config:<25} {page}"
