"""Measure what the machine offers to this process, within the limits of its containers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, and the quota of its control groups."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(int, _quotas())]))


def available_memory() -> int | None:
    """Return the bytes that new processes can take without swapping; None if the system does not tell (no Linux)."""
    free = re.search(r"^MemAvailable:\s*(\d+) kB", _text(_PROC / "meminfo"), re.MULTILINE)
    return None if free is None else max(0, min([int(free[1]) * 1024, *_free_in_groups()]))


def own_memory() -> int:
    """Return the bytes of memory that this process occupies now; 0 if the system does not tell (no Linux)."""
    resident = re.search(r"^VmRSS:\s*(\d+) kB", _text(_PROC / "self" / "status"), re.MULTILINE)
    return 0 if resident is None else int(resident[1]) * 1024


def _quotas() -> Iterator[float]:
    """Yield the cores that each control group allows, where it limits them."""
    for folder in _folders("cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")  # version 2
        if not quota:
            quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _free_in_groups() -> Iterator[int]:
    """Yield the bytes that are free in each control group that limits memory; files in its cache count as free."""
    for folder in _folders("memory"):
        for limit, usage, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdigit() and used.isdigit():
                cache = re.search(rf"^{cached} (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
                yield int(most) - int(used) + (int(cache[1]) if cache else 0)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those around them; in a container, some do not exist."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _GROUPS / controller if controllers else _GROUPS
            folder = root / path.strip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
