"""Count the cores that this process may use, within the limits of its containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, and the quota of its control groups."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield the cores that each control group allows, where it limits them."""
    for folder in _folders():
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")  # version 2
        if not quota:
            quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _folders() -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those around them; in a container, some do not exist."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            root = _GROUPS / "cpu" if controllers else _GROUPS
            folder = root / path.strip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
