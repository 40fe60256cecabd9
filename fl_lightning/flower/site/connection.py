"""Test whether a site can reach its server, step by step, and say what to change."""

from __future__ import annotations

import argparse
import base64
import email.utils
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import fl_lightning
from fl_lightning.compat.flower import FLEET, VERSION, installed_version
from fl_lightning.compat.flower_line import TOO_LARGE, fix_of
from fl_lightning.errors import ConfigurationError, FederationError
from fl_lightning.flower.wire.keys import read_private_key, require_certificate
from fl_lightning.flower.wire.requirements import address_of
from fl_lightning.flower.words import minor

_CLOCK = 120.0
"""The largest difference of clocks in seconds; Flower refuses signatures that are older than 300 s."""
_PIECE = 5_300_000
"""The largest request in bytes."""
_PATIENCE = 10.0
"""The seconds for which a connection may take."""

ERRORS = (FederationError, OSError, ValueError)
"""What a test raises if it fails; the message says what to do."""


class _Server:
    """Reach the server as Flower will, through the proxy of the environment, and hold the headers of its answer."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        host, _, port = address_of(arguments.server).rpartition(":")
        self.host, self.port, self.ca = host.strip("[]"), int(port), arguments.ca
        given = getproxies_environment()
        address = "" if proxy_bypass_environment(self.host) else given.get("https") or given.get("all") or ""
        self.proxy, self.first = None, (self.host, self.port)
        if address:
            self.proxy = found = urlsplit(address if "://" in address else f"http://{address}")
            self.first = str(found.hostname), found.port or (443 if found.scheme == "https" else 80)
        self.headers: dict[str, str] = {}

    def ask(self, what: str, *headers: str) -> tuple[list[str], dict[str, Any], ssl.SSLContext]:
        """Return the first lines of the answer to a request without content, the server's certificate, and the CAs."""
        context, proxy = ssl.create_default_context(cafile=self.ca), self.proxy
        with closing(http.client.HTTPSConnection(*self.first, timeout=_PATIENCE, context=context)) as connection:
            if proxy is not None:
                words = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
                login = {"Proxy-Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"} if proxy.username else {}
                connection.set_tunnel(self.host, self.port, login)
            connection.connect()
            asked = (f"POST {FLEET}{what} HTTP/1.1", f"Host: {self.host}", *headers, "Connection: close", "", "")
            connection.sock.sendall("\r\n".join(asked).encode())
            told = connection.sock.recv(8192).decode("latin-1").partition("\r\n\r\n")[0]
            return told.split("\r\n"), dict(connection.sock.getpeercert() or {}), context


def connection_tests(arguments: argparse.Namespace) -> list[tuple[str, Callable[[], str]]]:
    """Return the tests by name, in order: each needs the ones before it, returns what it found, and raises if it fails."""
    server = _Server(arguments)
    return [
        ("connection", lambda: _connects(server)),
        ("clock", lambda: _clock(server)),
        ("versions", lambda: _versions(server)),
        ("size of requests", lambda: _takes_pieces(server)),
        ("registration", lambda: _registered(arguments)),
    ]


def first_problem(arguments: argparse.Namespace) -> str:
    """Return what keeps a site from its server, and what to change; empty if all tests pass."""
    for name, test in connection_tests(arguments):
        try:
            test()
        except ERRORS as error:
            return f"{name}: {error}"
    return ""


def _connects(server: _Server) -> str:
    """Check name, port, and the certificate's chain, name and expiry, and note the server's time and version."""
    if server.ca:
        require_certificate(server.ca)
    through = "" if server.proxy is None else f" through the proxy {server.first[0]}:{server.first[1]} (HTTPS_PROXY)"
    try:
        lines, certificate, context = server.ask("pull-messages", "Content-Length: 0")
    except ssl.SSLError as error:
        raise ConfigurationError(f"{error}. Pass the server's ca.crt with '--ca', and use the name in it.") from error
    except (OSError, http.client.HTTPException) as error:
        refused = re.search(r"Tunnel connection failed: (\d+)", str(error))
        fix = "Check the address, or ask for the proxy or firewall." if refused is None else fix_of(int(refused[1]))
        what = "is not known" if isinstance(error, socket.gaierror) else "does not answer"
        raise ConfigurationError(f"{server.host}:{server.port} {what}{through} ({error}). {fix}") from error
    server.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    ends = {"certificate": ssl.cert_time_to_seconds(certificate["notAfter"])}
    if server.ca:
        ends["CA"] = min(ssl.cert_time_to_seconds(str(ca["notAfter"])) for ca in context.get_ca_certs())
    days = {name: int((end - time.time()) / 86400) for name, end in ends.items()}
    for name, left in days.items():
        if left < 1:
            raise ConfigurationError(f"The {name} expires within a day. The server needs a new one.")
    valid = ", ".join(f"{name} {left} more days" for name, left in days.items())
    return f"{server.host}:{server.port} answers{through}; {valid}"


def _versions(server: _Server) -> str:
    here, there = fl_lightning.__version__, server.headers.get(VERSION, "")[:40]
    if there and minor(there) != minor(here):
        raise ConfigurationError(f"The server has fl_lightning {there}, but this site {here}. Install {minor(there)} here.")
    return f"fl_lightning {here} here and {there or 'one that it does not tell'} at the server, Flower {installed_version()}"


def _takes_pieces(server: _Server) -> str:
    """Ask whether a request of the size of a piece may come, without sending it."""
    lines, *_ = server.ask("push-object", f"Content-Length: {_PIECE}", "Expect: 100-continue")
    if lines[0].split(" ")[1:2] == [str(TOO_LARGE)]:
        raise ConfigurationError(f"A proxy in front of the server answers with status {TOO_LARGE}. {fix_of(TOO_LARGE)}")
    return f"{_PIECE / 1e6:.1f} MB may come"


def _clock(server: _Server) -> str:
    if "date" not in server.headers:
        raise ConfigurationError("The server did not tell its time.")
    apart = abs(time.time() - email.utils.parsedate_to_datetime(server.headers["date"]).timestamp())
    if apart > _CLOCK:
        raise ConfigurationError(
            f"This clock and the server's differ by {apart:.0f} s. Synchronise them (NTP): signatures hold 300 s."
        )
    return f"{apart:.0f} s apart"


def _registered(arguments: argparse.Namespace) -> str:
    from fl_lightning.compat.flower_site import RunWatch

    roots = Path(arguments.ca).read_bytes() if arguments.ca else None
    key = read_private_key(Path(arguments.key))
    if not RunWatch(address_of(arguments.server), roots, key).registered():
        raise ConfigurationError("The server does not know this key. Send it the public key: fl-lightning register NAME.pub")
    return "the server knows this key"
