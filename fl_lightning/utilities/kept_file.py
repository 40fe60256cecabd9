"""Read files that this package has written; a damaged one is one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError


def read_kept(path: Path, fix: str) -> dict[str, Any]:
    """Return the values in a JSON file; none if it does not exist.

    Args:
        path: the file.
        fix: what to do if it is damaged, in sentences.

    Raises:
        ConfigurationError: if the file is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise damaged(path, fix) from error
    if not isinstance(found, dict):
        raise damaged(path, fix)
    return found


def damaged(path: Path, fix: str) -> ConfigurationError:
    """Return the error of a damaged file."""
    return ConfigurationError(f"The file '{path}' is damaged. {fix}")
