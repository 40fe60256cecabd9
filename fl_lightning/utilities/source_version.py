"""Name the code that runs: the release, and the commit of a git checkout."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def source_version(version: str, folder: Path = Path(__file__).parents[2]) -> str:
    """Return a release with the commit it runs from, such as ``0.2.0 (commit 60b2303)``; without git, the release alone.

    A commit with changes that are not committed ends in ``-dirty``.

    Args:
        version: the release.
        folder: the folder that holds the package.
    """
    if not (folder / ".git").exists():
        return version
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout of another user, which git refuses to read
        return version
    return f"{version} (commit {done.stdout.strip()})"
