"""Test before the first round whether a site can take part, and say what the server would learn: ``site --check``."""

from __future__ import annotations

import argparse
import email.utils
import socket
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fl_lightning.compat.flower import FLEET
from fl_lightning.compat.flower_site import RunWatch
from fl_lightning.errors import FederationError
from fl_lightning.flower.site import address_of
from fl_lightning.flower.site_data import SiteData, read_settings

_CLOCK = 120.0
"""The largest difference of clocks in seconds; Flower refuses signatures that are older than 300 s."""


class _Failed(Exception):  # noqa: N818
    """A test failed; the message says what to do."""


def check(arguments: argparse.Namespace) -> bool:
    """Run all tests, print a line for each, and return whether all passed."""
    host, _, port = address_of(arguments.server).rpartition(":")
    host = host.strip("[]")
    seen: dict[str, Any] = {}
    tests: list[tuple[str, Callable[[], str]]] = [
        ("name resolution", lambda: _resolves(host)),
        ("port", lambda: _connects(host, int(port))),
        ("certificate", lambda: _certificate(host, int(port), arguments.ca, seen)),
        ("clock", lambda: _clock(seen)),
        ("registration", lambda: _registered(arguments)),
        ("data", lambda: _data(arguments)),
    ]
    failed: list[str] = []
    for name, test in tests:
        if failed and name != "data":  # each needs the one before
            print(f"-       {name}: not tested")
            continue
        try:
            print(f"ok      {name}: {test()}", flush=True)
        except (_Failed, FederationError, OSError, ValueError) as error:
            failed.append(name)
            print(f"FAILED  {name}: {error}", flush=True)
    return not failed


def _resolves(host: str) -> str:
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, None)})
    except OSError as error:
        raise _Failed(f"'{host}' is not known here ({error}). Check the name in '--server', or the DNS.") from error
    return f"{host} is {', '.join(found)}"


def _connects(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise _Failed(f"{host}:{port} does not answer ({error}). Ask for the firewall, a proxy, or the server.") from error
    return f"{host}:{port} answers"


def _certificate(host: str, port: int, ca: str | None, seen: dict[str, Any]) -> str:
    """Check chain, name and expiry, and note the server's time."""
    context = ssl.create_default_context(cafile=ca)
    try:
        with (
            socket.create_connection((host, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            seen["certificate"] = tls.getpeercert()
            tls.sendall(f"GET {FLEET} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            seen["answer"] = tls.recv(4096).decode("latin-1")
    except ssl.SSLError as error:
        raise _Failed(f"{error}. Pass the server's ca.crt with '--ca', and use the name in its certificate.") from error
    ends = ssl.cert_time_to_seconds(seen["certificate"]["notAfter"])
    days = int((ends - time.time()) / 86400)
    if days < 1:
        raise _Failed("The certificate expires within a day. The server needs a new one.")
    return f"valid for {host}, {days} more days"


def _clock(seen: dict[str, Any]) -> str:
    line = next((x for x in seen.get("answer", "").split("\r\n") if x.lower().startswith("date:")), "")
    if not line:
        raise _Failed("The server did not tell its time.")
    there = email.utils.parsedate_to_datetime(line.partition(":")[2].strip())
    apart = abs((datetime.now(timezone.utc) - there).total_seconds())
    if apart > _CLOCK:
        raise _Failed(f"This clock and the server's differ by {apart:.0f} s. Synchronise them (NTP): signatures hold 300 s.")
    return f"{apart:.0f} s apart"


def _registered(arguments: argparse.Namespace) -> str:
    roots = Path(arguments.ca).read_bytes() if arguments.ca else None
    key = Path(arguments.key).read_bytes()
    if not RunWatch(address_of(arguments.server), roots, key).registered():
        raise _Failed("The server does not know this key. Send it the public key: fl-lightning register NAME.pub")
    return "the server knows this key"


def _data(arguments: argparse.Namespace) -> str:
    settings = read_settings(Path(arguments.data))
    data = SiteData(settings)
    info = data.info(arguments.name, settings.policy.label_counts)
    lines = [f"the server would learn the name '{info.name}', {info.num_examples} training examples"]
    lines += [f"{info.num_validation} validation and {info.num_test} test examples"]
    lines += [f"the names of the classes: {', '.join(info.classes)}"] if info.classes else []
    lines += [f"the counts of the classes: {info.label_counts}"] if info.label_counts else ["no counts of classes"]
    return "; ".join(lines)
