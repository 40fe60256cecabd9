"""``site --check`` against a small server with a certificate, and against a proxy, without Flower."""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import proxy_bypass_environment

import pytest
from relay import Relay

import fl_lightning
from fl_lightning.compat.flower import VERSION, prepare_environment
from fl_lightning.flower.site import check as site_check
from fl_lightning.flower.site import connection as site_connection
from fl_lightning.flower.wire.keys import create_certificates
from fl_lightning.flower.wire.server_folder import ServerFolder

pytest.importorskip("cryptography")
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")


class Answer(BaseHTTPRequestHandler):
    """Answer every request with the same headers."""

    server: Server

    def do_POST(self) -> None:
        self.send_response_only(400 if int(self.headers["Content-Length"]) <= self.server.limit else 413)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    """Answer over TLS, in a thread."""

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder.files["certificate"], folder.files["key"])
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.ca, self.limit, self.port = folder.files["ca"], 2**30, self.server_port
        self.headers = {"date": formatdate(usegmt=True), VERSION: fl_lightning.__version__}
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture(scope="module")
def certified(tmp_path_factory) -> ServerFolder:
    folder = ServerFolder(tmp_path_factory.mktemp("fed"))
    create_certificates(folder.files, folder.ca_key, "localhost")
    return folder


@pytest.fixture
def server(certified, monkeypatch) -> Iterator[Server]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(site_connection, "_registered", lambda arguments: "the server knows this key")
    monkeypatch.setattr(site_check, "_data", lambda arguments: "the server would learn nothing")
    with Server(certified) as found:
        yield found
        found.shutdown()


def said(server: Server, capsys: Any, host: str = "localhost", ca: str | None = "") -> tuple[bool, list[str]]:
    """Return whether all tests passed, and the lines."""
    own = {"server": f"https://{host}:{server.port}", "ca": server.ca if ca == "" else ca}
    arguments = argparse.Namespace(**own, name="a", key="a.key", data="data.yaml")
    return site_check.check(arguments), capsys.readouterr().out.splitlines()


def failure(server: Server, capsys: Any, **more: Any) -> str:
    """Return the only line of a failure; what follows must be left out, except for the data."""
    passed, lines = said(server, capsys, **more)
    assert not passed
    (number,) = [k for k, line in enumerate(lines) if line.startswith("FAILED")]
    assert all(line.startswith("ok") for line in [*lines[:number], lines[-1]])
    assert all(line.endswith("not tested") for line in lines[number + 1 : -1])
    return lines[number]


def test_all_tests_pass(server, capsys):
    passed, lines = said(server, capsys)
    assert passed, lines
    names = [line.partition(":")[0].removeprefix("ok").strip() for line in lines]
    assert names == ["connection", "clock", "versions", "size of requests", "registration", "data"]
    assert "certificate 824 more days, CA 3649 more days" in lines[0]


def test_another_ca_and_another_name_are_told(server, capsys, monkeypatch):
    told = failure(server, capsys, ca=None)
    assert told.startswith("FAILED  connection")
    assert "Pass the server's ca.crt with '--ca'" in told
    addresses = socket.getaddrinfo("127.0.0.1", server.port, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    assert "Pass the server's ca.crt" in failure(server, capsys, host="another.example")


def test_an_expiring_ca_is_told(server, capsys, monkeypatch):
    now = site_connection.time.time()
    monkeypatch.setattr(site_connection.time, "time", lambda: now + 3649.5 * 86400)
    monkeypatch.setattr(site_connection.ssl.SSLSocket, "getpeercert", lambda *_: {"notAfter": "Jan  1 00:00:00 2099 GMT"})
    assert "The CA expires within a day." in failure(server, capsys)


def test_the_first_problem_is_the_cause(server, capsys):
    given = argparse.Namespace(server=f"https://localhost:{server.port}", ca=server.ca, name="a", key="a.key")
    assert site_connection.first_problem(given) == ""
    server.headers["date"] = formatdate(0, usegmt=True)
    differ = "clock: This clock and the server's differ by"
    assert site_connection.first_problem(given).startswith(differ)
    assert f"FAILED  {differ}" in failure(server, capsys)
    given.ca = None
    assert site_connection.first_problem(given).startswith("connection: ")


def test_another_minor_version_and_a_limit_of_requests_are_told(server, capsys):
    server.limit = 1_000_000
    limited = failure(server, capsys)
    assert limited.startswith("FAILED  size of requests: A proxy in front of the server answers with status 413. It limits ")
    assert "for nginx, 'client_max_body_size 16m;'." in limited
    server.limit, server.headers[VERSION] = 2**30, "9.9.1"
    told = f"The server has fl_lightning 9.9.1, but this site {fl_lightning.__version__}. Install 9.9"
    assert told in failure(server, capsys)
    del server.headers[VERSION]
    passed, lines = said(server, capsys)
    assert passed
    assert "one that it does not tell at the server" in lines[2]


def test_a_port_that_does_not_answer_is_told(server, capsys):
    with socket.socket() as bound:  # nobody listens there, and nobody else can begin to
        bound.bind(("127.0.0.1", 0))
        server.port = bound.getsockname()[1]
        assert "does not answer" in failure(server, capsys)


def test_the_proxy_of_the_environment_is_used(server, capsys, monkeypatch):
    """Flower uses it, so the tests do; it looks up the server's name."""
    with Relay(server.port, connect=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://us%40er:word@127.0.0.1:{proxy.port}")
        passed, lines = said(server, capsys)
    assert passed, lines
    assert f" through the proxy 127.0.0.1:{proxy.port} (HTTPS_PROXY); certificate" in lines[0]
    assert "word" not in "".join(lines)
    assert {one.split()[1] for one in proxy.asked} == {f"localhost:{server.port}"}
    assert all("Proxy-Authorization: Basic dXNAZXI6d29yZA==" in one for one in proxy.asked)
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert "proxy" not in said(server, capsys)[1][0]


def test_a_proxy_that_refuses_is_told_with_the_fix(server, capsys, monkeypatch):
    """The fixes are those of test_lines.py."""
    with Relay(server.port, connect=True, status=407) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        told = failure(server, capsys)
    assert f"FAILED  connection: localhost:{server.port} does not answer through the proxy 127.0.0.1:{proxy.port} (" in told
    assert "It asks for a login. Set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT" in told


def test_loopback_is_never_asked_through_a_proxy(monkeypatch):
    """A site's worker asks its SuperNode, and a fit its SuperLink, on this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "intranet")
    for _ in range(2):
        prepare_environment()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert proxy_bypass_environment("127.0.0.1")
