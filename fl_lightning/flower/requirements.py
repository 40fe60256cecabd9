"""Refuse to run without the version of Flower that was tested."""

from __future__ import annotations

from fl_lightning.compat.flower import TESTED, installed_version, prepare_environment
from fl_lightning.errors import ConfigurationError


def require_flower() -> None:
    """Check the installed version of Flower.

    Raises:
        ConfigurationError: if it is missing, or not the minor version that was tested.
    """
    found, wanted = installed_version(), ".".join(map(str, TESTED))
    if found != TESTED:
        came = "is not installed" if found is None else f"has version {'.'.join(map(str, found))}"
        raise ConfigurationError(
            f"A federation over a network needs Flower {wanted}, but 'flwr' {came}. Install it in an environment of its own: "
            "pip install 'fl_lightning[flower]' (Python 3.11 or later)."
        )
    prepare_environment()


def require_name(name: str) -> None:
    """Check the name of a site, which also names its folder.

    Raises:
        ConfigurationError: if it has other characters than letters, digits, ``-`` and ``_``.
    """
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigurationError(f"The name is {name!r}. Use letters, digits, '-' and '_' only.")
