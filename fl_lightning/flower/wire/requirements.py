"""Refuse to run without the version of Flower that was tested."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from fl_lightning.compat.flower import TESTED, installed_version
from fl_lightning.compat.flower_control import prepare_environment
from fl_lightning.errors import ConfigurationError


def require_flower() -> None:
    """Check the installed version of Flower, and the proxies for its connections.

    Raises:
        ConfigurationError: if it is missing, or no minor version that was tested; or if a proxy cannot be used.
    """
    found, wanted = installed_version(), " or ".join(".".join(map(str, tested)) for tested in TESTED)
    if found not in TESTED:
        came = "is not installed" if found is None else f"has version {'.'.join(map(str, found))}"
        raise ConfigurationError(
            f"A federation over a network needs Flower {wanted}, but 'flwr' {came}. Install it in an environment of its own: "
            "pip install 'fl_lightning[flower]' (Python 3.11 or later)."
        )
    _require_proxies()
    prepare_environment()


def _require_proxies() -> None:
    """Refuse proxies that Flower's connections cannot use; they fail even where no proxy is needed."""
    for name, address in getproxies_environment().items():
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if name in ("http", "https", "all") and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigurationError(
                f"{name.upper()}_PROXY is '{parts.scheme}://{parts.hostname}', which is not an HTTP proxy. Correct or unset "
                "it for this command."
            )


def require_name(name: str) -> None:
    """Check the name of a site, which also names its folder.

    Raises:
        ConfigurationError: if it has other characters than letters, digits, ``-`` and ``_``.
    """
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigurationError(f"The name is {name!r}. Use letters, digits, '-' and '_' only.")
