"""Slow and broken lines without Flower: what is lost is asked for again, and what is wrong is said."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from relay import Relay, cuts_of, rate_of
from sites_over_bytes import HOOK, LINES, LOST, configuration, federate, prepare, same_bits, simulate, start_site

from fl_lightning.compat import flower_line
from fl_lightning.compat.flower_delivery import kind_of, patience_of
from fl_lightning.compat.flower_line import Trouble, in_words


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    HOOK.clear()
    LINES.clear()


def is_task(parts) -> bool:
    return b'"ClientTask"' in parts["order"]


def test_a_reply_that_the_transport_loses_is_answered_from_the_store_without_the_model(tmp_path, monkeypatch):
    """With the default settings: no retry is spent, and the site does not train again."""
    prepare(tmp_path, monkeypatch)
    config = configuration(strategy={"class_path": "Scaffold"})
    whole, asked = simulate(config), []

    def lose(name, parts, ask):
        reply = ask()
        if name != "south" or not is_task(parts):
            return reply
        asked.append("model" in parts)
        return LOST if len(asked) in (1, 2, 4) else reply

    HOOK["hook"] = lose
    assert same_bits(whole, federate(config))
    assert asked == [True, False, False, True, False, True]
    assert LINES.count("south: Answered a repeated order from the store.") == 3
    assert sum(line.startswith("south: Round") for line in LINES) == 3


def test_an_order_that_the_transport_loses_reaches_a_site_that_has_started_again(tmp_path, monkeypatch):
    """It lacks the model, and asks for it."""
    prepare(tmp_path, monkeypatch)
    config, asked = configuration(), []
    whole = simulate(config)

    def lose(name, parts, ask):
        if name == "west" and is_task(parts):
            asked.append("model" in parts)
            if len(asked) == 2:
                start_site(tmp_path, name)
                return LOST
        return ask()

    HOOK["hook"] = lose
    assert same_bits(whole, federate(config))
    assert asked == [True, True, False, True, True]


def test_a_site_whose_replies_are_always_lost_fails_in_the_end(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    monkeypatch.setattr("fl_lightning.flower.exchange._MOST_LOST", 3)
    asked = []

    def lose(name, parts, ask):
        asked.append(name) if name == "south" and is_task(parts) else None
        return LOST if name == "south" and is_task(parts) else ask()

    HOOK["hook"] = lose
    with pytest.raises(SystemExit):
        federate(configuration())
    assert len(asked) == 4
    assert "Site south (client 1): its reply was lost on its way. When the site can answer again" in capsys.readouterr().err


def test_an_order_tells_the_superlink_for_how_long_its_site_may_be_offline():
    assert [patience_of(kind_of(seconds)) for seconds in (30, 90.4, 43200)] == [0, 60, 43170]
    assert [patience_of(kind) for kind in ("train", "evaluate.silence_9", "train.silence_x")] == [0, 0, 0]


# ---------------------------------------------------------------- what the site's staff hears


def answered(status: int, text: str = "<html>") -> Exception:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("POST", "https://fed.example.org/v1/fleet/push-object")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, text=text, request=request))


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (413, "status 413. It limits the size of requests, .* for nginx, 'client_max_body_size 16m;'"),
        (403, "status 403. It forbids the server's address or port. Ask for permission, or let the server use port 443"),
        (502, "status 502. It does not reach the server. Start 'fl-lightning serve' there, or .* 'proxy_read_timeout 300s;'"),
        (418, "status 418. Ask its administrators."),
    ],
)
def test_a_proxy_that_answers_instead_of_the_server_is_named_with_the_fix(status, fix):
    assert re.match(f"A proxy answers instead of the server, with {fix}", in_words(answered(status)))


def test_a_proxy_that_refuses_the_connection_is_named_with_the_fix():
    httpx = pytest.importorskip("httpx")
    said = in_words(httpx.ProxyError("407 Proxy Authentication Required"))
    assert said == (
        "The proxy of HTTPS_PROXY refuses the connection (407 Proxy Authentication Required). It asks for a login. Set "
        "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or ask for access without one."
    )
    assert in_words(httpx.ProxyError("499 Odd")).endswith("(499 Odd). Ask its administrators.")
    assert in_words(httpx.ReadTimeout("timed out")) == "The server does not answer (ReadTimeout: timed out)."


def test_trouble_is_told_if_it_lasts_and_so_is_its_end(tmp_path, monkeypatch):
    httpx = pytest.importorskip("httpx")
    clock, path = [0.0], tmp_path / "trouble"
    monkeypatch.setattr(flower_line.time, "monotonic", lambda: clock[0])
    trouble = Trouble(path)

    def said() -> str:
        found = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return found

    for moment, error in ((0, httpx.ConnectError("refused")), (19, httpx.ConnectError("refused"))):
        clock[0] = moment
        trouble.failed(error)
        assert not said()
    trouble.worked()
    clock[0] = 30
    trouble.failed(httpx.ConnectError("refused"))
    clock[0] = 51
    trouble.failed(httpx.ConnectError("refused"))
    assert said() == "The server does not answer (ConnectError: refused). It is tried again until it works."
    trouble.failed(httpx.ReadError("EOF"))
    assert not said()
    trouble.failed(answered(502))
    assert said().startswith("A proxy answers instead of the server, with status 502.")
    clock[0] = 92
    trouble.worked()
    assert said() == "The server answers again, after 62 s."


# ---------------------------------------------------------------- the relay


@contextmanager
def echo() -> Iterator[int]:
    """Send back what comes in, at a port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection = listening.accept()[0]
                except OSError:
                    return
                threading.Thread(target=send_back, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def send_back(connection: socket.socket) -> None:
    with connection:
        while content := connection.recv(65536):
            connection.sendall(content)


def exchanged(port: int, size: int) -> int:
    """Send bytes, and return how many came back."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(bytes(size))
        line.shutdown(socket.SHUT_WR)
        return sum(len(part) for part in iter(lambda: line.recv(65536), b""))


def test_the_relay_passes_on_slows_down_and_breaks():
    with echo() as target, Relay(target, rate=1e6) as relay:
        begun = time.monotonic()
        assert exchanged(relay.port, 500_000) == 500_000
        assert time.monotonic() - begun >= 0.4  # a lower limit only, which no busy machine breaks
        assert relay.bytes == {"up": 500_000, "down": 500_000}
        with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as line:
            line.sendall(b"x")
            assert line.recv(1) == b"x"
            relay.cut(0.5)
            with pytest.raises((OSError, AssertionError)):
                assert line.recv(1)
        with pytest.raises((OSError, AssertionError)):
            assert exchanged(relay.port, 1) == 1
        while relay.is_cut:
            time.sleep(0.05)
        assert exchanged(relay.port, 1) == 1


def test_the_relay_holds_what_it_gets_while_packets_vanish():
    with echo() as target, Relay(target) as relay:
        relay.cut(0.5, hangs=True)
        assert exchanged(relay.port, 100) == 100
        assert not relay.is_cut


def test_the_relay_is_a_proxy_that_opens_tunnels_or_refuses_them():
    for status in (200, 407):
        with echo() as target, Relay(target, connect=True, status=status) as relay:
            with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as line:
                line.sendall(b"CONNECT fed.example.org:8443 HTTP/1.1\r\n\r\n")
                assert line.recv(100).startswith(b"HTTP/1.1 %d " % status)
                line.sendall(b"x") if status == 200 else None
                assert line.recv(1) == (b"x" if status == 200 else b"")
            assert relay.asked[0].startswith("CONNECT fed.example.org:8443 ")


def test_speeds_and_cuts_are_read():
    assert [rate_of(link) for link in ("10mbit", "500kbit", "1gbit")] == [1.25e6, 62.5e3, 125e6]
    assert cuts_of(["60@30", "600@up"]) == [(60, "30"), (600, "up")]
    with pytest.raises(ValueError, match="A line is '10MB', but must be a number and kbit, mbit or gbit"):
        rate_of("10MB")
