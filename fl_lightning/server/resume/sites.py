"""Compare the sites of a checkpoint with those of a run: a number belongs to a site for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def other_sites(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], fixed: str = "") -> list[str]:
    """Return in words what a resumed run must not change about its sites.

    Sites may join with further numbers. A site without examples was never online: its examples become known later.

    Args:
        before: name and number of training examples of each site in the checkpoint, in the order of their numbers.
        now: those of this run.
        fixed: the setting that needs the same sites; empty if sites may join.
    """
    problems = []
    for number, ((name, size), (other, new)) in enumerate(zip(before, now, strict=False)):
        if name != other:
            problems.append(
                f"The checkpoint knows client {number} as site '{name}', but this run as '{other}'. Numbers are never given to "
                "other sites: use the folder of 'fl-lightning serve' with which the run was started."
            )
        elif size != new and size and new:
            problems.append(f"Site {name} had {size} training examples when the checkpoint was written, but has {new} now.")
    if len(now) < len(before):
        lost = ", ".join(str(name) for name, _ in before[len(now) :])
        problems.append(f"The checkpoint has sites that are not registered here: {lost}.")
    if len(now) > len(before) and fixed:
        joined = ", ".join(str(name) for name, _ in now[len(before) :])
        problems.append(f"The sites {joined} were registered later, but {fixed} needs the same sites from the first round on.")
    return problems
