"""The private names of other libraries that this package depends on, each behind a function or class of its own.

A library may rename or change them in any release. Nothing outside this folder uses one, and ``tests/test_compat.py`` checks
each against the installed release.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_names_of(library: str) -> Iterator[None]:
    """Say which release of which library lacks a private name, when an import or a look-up in the block fails.

    Args:
        library: its name at the package index.

    Raises:
        ImportError: naming the library, its version, and what is missing.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"fl_lightning does not work with {library} {installed(library)}: {error}. Install the previous release of "
            f"{library}, or a newer fl_lightning."
        ) from error


def installed(library: str) -> str:
    """Return the installed version of a library."""
    from importlib.metadata import PackageNotFoundError, version  # needed for a message only

    if library == "Python":
        return platform.python_version()
    try:
        return version(library)
    except PackageNotFoundError:
        return "(version unknown)"
