"""Read the addresses of servers."""

from __future__ import annotations

from urllib.parse import urlsplit

from fl_lightning.errors import ConfigurationError


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
