"""Read a setting that names one path, or a path for each client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fl_lightning.errors import require_texts


def client_paths(setting: str, given: str | os.PathLike[str] | Mapping[str, str]) -> Path | dict[str, Path]:
    """Return the path, or each client's path by its name.

    Args:
        setting: the name of the setting, for messages.
        given: its value.

    Raises:
        ConfigurationError: if a client's name is not text.
    """
    if not isinstance(given, Mapping):
        return Path(given)
    require_texts(setting, given)
    return {name: Path(own) for name, own in given.items()}
