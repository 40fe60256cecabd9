"""Check what the commands of server and sites need: Flower, proxies, names of sites and addresses of servers."""

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
    for name, address in getproxies_environment().items():
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if name in ("http", "https", "all") and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigurationError(
                f"{name.upper()}_PROXY is '{parts.scheme}://{parts.hostname}', which is not an HTTP proxy. Correct or unset "
                "it for this command."
            )
    prepare_environment()


def require_name(name: str) -> None:
    """Check the name of a site, which also names its folder.

    Raises:
        ConfigurationError: if it has other characters than letters, digits, ``-`` and ``_``.
    """
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigurationError(f"The name is {name!r}. Use letters, digits, '-' and '_' only.")


def address_of(server: str) -> str:
    """Return host and port of a server's address.

    Raises:
        ConfigurationError: if it is not https, or names no port.
    """
    parts = urlsplit(server if "://" in server else f"https://{server}")
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigurationError(f"'--server' is {server!r}. Use https://HOST:PORT, as 'fl-lightning serve' prints it.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    try:
        return f"{host}:{parts.port or 443}"
    except ValueError as error:
        raise ConfigurationError(f"'--server' is {server!r}, whose port is not a number from 0 to 65535.") from error
