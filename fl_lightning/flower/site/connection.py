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
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import fl_lightning
from fl_lightning.compat.flower import FLEET, VERSION, installed_version
from fl_lightning.compat.flower_line import TOO_LARGE, fix_of
from fl_lightning.errors import FederationError
from fl_lightning.flower.wire.keys import read_private_key, require_certificate
from fl_lightning.flower.wire.requirements import address_of
from fl_lightning.flower.words import minor

_CLOCK = 120.0
"""The largest difference of clocks in seconds; Flower refuses signatures that are older than 300 s."""

_PIECE = 5_300_000
"""The largest request in bytes."""
_PATIENCE = 10.0
"""The seconds for which a connection may take."""


class FailedTest(Exception):  # noqa: N818
    """A test failed; the message says what to do."""


class _Server:
    """Reach the server, and hold what it told.

    Attributes:
        proxy: the proxy on the way; None without one.
        headers: those of its answer.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        host, _, port = address_of(arguments.server).rpartition(":")
        self.host, self.port, self.ca = host.strip("[]"), int(port), arguments.ca
        self.proxy: SplitResult | None = None
        self.headers: dict[str, str] = {}

    @property
    def first(self) -> tuple[str, int]:
        """Return what is connected to, the proxy or the server."""
        if self.proxy is None:
            return self.host, self.port
        return str(self.proxy.hostname), self.proxy.port or (443 if self.proxy.scheme == "https" else 80)

    def connect(self) -> socket.socket:
        """Return a connection, through the proxy if there is one."""
        if self.proxy is None:
            return socket.create_connection(self.first, timeout=_PATIENCE)
        words = f"{unquote(self.proxy.username or '')}:{unquote(self.proxy.password or '')}"
        login = {"Proxy-Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"} if self.proxy.username else {}
        tunnel = http.client.HTTPConnection(*self.first, timeout=_PATIENCE)
        tunnel.set_tunnel(self.host, self.port, login)
        tunnel.connect()
        found, tunnel.sock = tunnel.sock, None
        return found

    def ask(self, what: str, *headers: str) -> tuple[list[str], dict[str, Any], ssl.SSLContext]:
        """Return the first lines of the answer to a request without content, the server's certificate, and the CAs."""
        context = ssl.create_default_context(cafile=self.ca)
        with self.connect() as plain, context.wrap_socket(plain, server_hostname=self.host) as tls:
            asked = (f"POST {FLEET}{what} HTTP/1.1", f"Host: {self.host}", *headers, "Connection: close", "", "")
            tls.sendall("\r\n".join(asked).encode())
            told = tls.recv(8192).decode("latin-1").partition("\r\n\r\n")[0]
            return told.split("\r\n"), dict(tls.getpeercert() or {}), context


def connection_tests(arguments: argparse.Namespace) -> list[tuple[str, Callable[[], str]]]:
    """Return the tests by name, in order: each needs the ones before it, returns what it found, and raises if it fails."""
    server = _Server(arguments)
    return [
        ("proxy", lambda: _proxy(server)),
        ("name resolution", lambda: _resolves(server)),
        ("port", lambda: _connects(server)),
        ("certificate", lambda: _certificate(server)),
        ("clock", lambda: _clock(server)),
        ("versions", lambda: _versions(server)),
        ("size of requests", lambda: _takes_pieces(server)),
        ("registration", lambda: _registered(arguments)),
    ]


ERRORS = (FailedTest, FederationError, OSError, ValueError)
"""What a test raises if it fails."""


def first_problem(arguments: argparse.Namespace) -> str:
    """Return what keeps a site from its server, and what to change; empty if all tests pass."""
    for name, test in connection_tests(arguments):
        try:
            test()
        except ERRORS as error:
            return f"{name}: {error}"
    return ""


def _proxy(server: _Server) -> str:
    """Find the proxy that Flower will use: that of the environment."""
    given = getproxies_environment()
    address = given.get("https") or given.get("all")
    if not address:
        return "none (HTTPS_PROXY is not set)"
    if proxy_bypass_environment(server.host):
        return f"none for {server.host} (NO_PROXY)"
    server.proxy = urlsplit(address if "://" in address else f"http://{address}")
    return f"{server.first[0]}:{server.first[1]} (HTTPS_PROXY)"


def _resolves(server: _Server) -> str:
    host = server.first[0]
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, None)})
    except OSError as error:
        where = "'--server'" if server.proxy is None else "HTTPS_PROXY"
        raise FailedTest(f"'{host}' is not known here ({error}). Check the name in {where}, or the DNS.") from error
    return f"{host} is {', '.join(found)}" + ("" if server.proxy is None else f"; the proxy looks up {server.host}")


def _connects(server: _Server) -> str:
    try:
        server.connect().close()
    except (OSError, http.client.HTTPException) as error:
        through, fix = "", "Ask for the firewall, or the server."
        if server.proxy is not None:
            refused = re.search(r"Tunnel connection failed: (\d+)", str(error))
            fix = "Ask for the proxy, or set NO_PROXY." if refused is None else fix_of(int(refused[1]))
            through = f" through the proxy {server.first[0]}:{server.first[1]}"
        raise FailedTest(f"{server.host}:{server.port} does not answer{through} ({error}). {fix}") from error
    return f"{server.host}:{server.port} answers"


def _certificate(server: _Server) -> str:
    """Check chain, name and expiry, also of the CA, and note the server's time and version."""
    if server.ca:
        require_certificate(server.ca)
    try:
        lines, certificate, context = server.ask("pull-messages", "Content-Length: 0")
    except ssl.SSLError as error:
        raise FailedTest(f"{error}. Pass the server's ca.crt with '--ca', and use the name in its certificate.") from error
    server.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    ends = {"certificate": ssl.cert_time_to_seconds(certificate["notAfter"])}
    if server.ca:
        ends["CA"] = min(ssl.cert_time_to_seconds(str(ca["notAfter"])) for ca in context.get_ca_certs())
    days = {name: int((end - time.time()) / 86400) for name, end in ends.items()}
    for name, left in days.items():
        if left < 1:
            raise FailedTest(f"The {name} expires within a day. The server needs a new one.")
    return f"valid for {server.host}; {', '.join(f'{name} {left} more days' for name, left in days.items())}"


def _versions(server: _Server) -> str:
    here, there = fl_lightning.__version__, server.headers.get(VERSION, "")
    flower = installed_version()
    if not there:
        return f"fl_lightning {here} and Flower {flower} here; the server does not tell its own"
    if minor(there) != minor(here):
        raise FailedTest(f"The server has fl_lightning {there[:40]}, but this site {here}. Install {minor(there)[:40]} here.")
    return f"fl_lightning {here} here and {there} at the server, Flower {flower}"


def _takes_pieces(server: _Server) -> str:
    """Ask whether a request of the size of a piece may come, without sending it."""
    lines, *_ = server.ask("push-object", f"Content-Length: {_PIECE}", "Expect: 100-continue")
    if lines[0].split(" ")[1:2] == [str(TOO_LARGE)]:
        raise FailedTest(f"A proxy in front of the server answers with status {TOO_LARGE}. {fix_of(TOO_LARGE)}")
    return f"{_PIECE / 1e6:.1f} MB may come"


def _clock(server: _Server) -> str:
    if "date" not in server.headers:
        raise FailedTest("The server did not tell its time.")
    apart = abs(time.time() - email.utils.parsedate_to_datetime(server.headers["date"]).timestamp())
    if apart > _CLOCK:
        raise FailedTest(f"This clock and the server's differ by {apart:.0f} s. Synchronise them (NTP): signatures hold 300 s.")
    return f"{apart:.0f} s apart"


def _registered(arguments: argparse.Namespace) -> str:
    from fl_lightning.compat.flower_site import RunWatch

    roots = Path(arguments.ca).read_bytes() if arguments.ca else None
    key = read_private_key(Path(arguments.key))
    if not RunWatch(address_of(arguments.server), roots, key).registered():
        raise FailedTest("The server does not know this key. Send it the public key: fl-lightning register NAME.pub")
    return "the server knows this key"
