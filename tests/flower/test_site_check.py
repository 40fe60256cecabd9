"""``site --check`` against a small server with a certificate, and against a proxy, without Flower."""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from email.utils import formatdate
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


class Server:
    """Answer every TLS connection with the same headers, in a thread."""

    def __init__(self, folder: ServerFolder) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder.files["certificate"], folder.files["key"])
        self.ca, self.limit = folder.files["ca"], 2**30
        self.headers = {"date": formatdate(usegmt=True), VERSION: fl_lightning.__version__}
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
                with self._context.wrap_socket(connection, server_side=True) as tls:
                    if asked := tls.recv(4096).decode():
                        length = int(asked.lower().split("content-length: ")[1].split()[0])
                        status = "400 Bad Request" if length <= self.limit else "413 Request Entity Too Large"
                        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
                        tls.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode())
            except ssl.SSLError:
                continue  # a client that only looks whether the port answers
            except OSError:
                if self.listening.fileno() < 0:
                    return


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
    found = Server(certified)
    yield found
    found.listening.close()


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


def test_another_minor_version_is_told(server, capsys):
    server.headers[VERSION] = "9.9.1"
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


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (403, "It forbids the server's address or port. Ask for permission"),
        (407, "It asks for a login. Set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"),
        (502, "It does not reach the server. Start 'fl-lightning serve' there"),
        (499, "Ask its administrators."),
    ],
)
def test_a_proxy_that_refuses_is_told_with_the_fix(status, fix, server, capsys, monkeypatch):
    with Relay(server.port, connect=True, status=status) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        told = failure(server, capsys)
    assert f"FAILED  connection: localhost:{server.port} does not answer through the proxy 127.0.0.1:{proxy.port} (" in told
    assert fix in told


def test_a_proxy_that_limits_requests_is_told_with_the_fix(server, capsys):
    server.limit = 1_000_000
    told = failure(server, capsys)
    assert told.startswith("FAILED  size of requests: A proxy in front of the server answers with status 413. It limits ")
    assert "for nginx, 'client_max_body_size 16m;'." in told


def test_loopback_is_never_asked_through_a_proxy(monkeypatch):
    """A site's worker asks its SuperNode, and a fit its SuperLink, on this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "intranet")
    for _ in range(2):
        prepare_environment()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert proxy_bypass_environment("127.0.0.1")
