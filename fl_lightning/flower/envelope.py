"""Wrap messages for the way between a server and a site, with the version that both must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import fl_lightning
from fl_lightning.errors import WireError
from fl_lightning.flower.words import minor, printable
from fl_lightning.wire import from_bytes, to_bytes

__all__ = ["KINDS", "minor", "opened", "printable", "reply", "request"]

KINDS = ("describe", "prepare", "work")
"""What a server asks: describe the data; build the model; carry out orders."""


def request(kind: str, **content: Any) -> bytearray:
    """Return a server's request as bytes."""
    return to_bytes({"kind": kind, "version": fl_lightning.__version__, **content})


def reply(**content: Any) -> bytearray:
    """Return a site's reply as bytes."""
    return to_bytes({"kind": "reply", "version": fl_lightning.__version__, **content})


def opened(content: bytes | bytearray, kinds: Sequence[str]) -> Mapping[str, Any]:
    """Return the contents of an envelope.

    Raises:
        WireError: if it is not one of these kinds, or another minor version wrote it.
    """
    found = from_bytes(content)
    if not isinstance(found, Mapping) or not isinstance(found.get("version"), str) or found.get("kind") not in kinds:
        raise WireError("The message is not an envelope of fl_lightning.")
    here = fl_lightning.__version__
    if minor(found["version"]) != minor(here):
        raise WireError(
            f"The message comes from fl_lightning {found['version'][:40]}, but this side has {here}. Server and sites need the "
            f"same minor version: install {minor(here)} on both."
        )
    return found
