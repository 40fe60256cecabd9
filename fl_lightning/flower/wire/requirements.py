"""Refuse to run with another version of Flower, a proxy that cannot be used, or a name that is none."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from fl_lightning.compat.flower import FLOWER, installed_version, prepare_environment
from fl_lightning.errors import ConfigurationError


def require_flower() -> None:
    """Check the installed version of Flower, and the proxies for its connections.

    Raises:
        ConfigurationError: if it is missing or another minor version, or if a proxy cannot be used.
    """
    found = installed_version()
    if found != FLOWER:
        came = "is not installed here" if found is None else f"has version {found} here"
        raise ConfigurationError(
            f"A federation needs Flower {FLOWER} at the server and at all sites, but 'flwr' {came}. Install it in an "
            f"environment of its own: pip install 'flwr=={FLOWER}.*' (Python 3.11 or later)."
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
