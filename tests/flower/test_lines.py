"""Slow and broken lines without Flower: what is lost is asked for again, and what is wrong is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sites_over_bytes import LINES, LOST, configuration, disturb, federate, prepare, refused, same_bits, simulate, start_site

from fl_lightning.compat import flower_line
from fl_lightning.compat.flower_delivery import kind_of, patience_of
from fl_lightning.compat.flower_line import Trouble, cause_at_server, in_words


@pytest.mark.slow
def test_a_reply_that_the_transport_loses_is_answered_from_the_store_without_the_model():
    """With the default settings: no retry is spent, and the site does not train again."""

    def lose(ask):
        reply = ask()
        return LOST if len(asked) in (1, 2, 4) else reply

    prepare()
    config = configuration(strategy={"class_path": "Scaffold"})
    whole, asked = simulate(config), disturb("south", lose)
    assert same_bits(whole, federate(config))
    assert ["model" in parts for parts in asked] == [True, False, False, True, False, True]
    assert LINES.count("south: Answered a repeated order from the store.") == 3
    assert sum(line.startswith("south: Round") for line in LINES) == 3


@pytest.mark.slow
def test_an_order_that_the_transport_loses_reaches_a_site_that_has_started_again():
    """It lacks the model, and asks for it."""

    def lose(ask):
        if len(asked) != 2:
            return ask()
        start_site(Path(), "west")
        return LOST

    prepare()
    whole, asked = simulate(configuration()), disturb("west", lose)
    assert same_bits(whole, federate(configuration()))
    assert ["model" in parts for parts in asked] == [True, True, False, True, True]


def test_a_site_whose_replies_are_always_lost_fails_in_the_end(monkeypatch):
    prepare()
    monkeypatch.setattr("fl_lightning.flower.server.exchange._MOST_LOST", 3)
    asked = disturb("south", lambda ask: LOST)
    said = refused(configuration())
    assert len(asked) == 4
    assert "Site south (client 1): its reply was lost on its way. When the site can answer again" in said


def test_an_order_tells_the_superlink_for_how_long_its_site_may_be_offline():
    assert [patience_of(kind_of(seconds)) for seconds in (30, 90.4, 43200)] == [0, 60, 43170]
    assert [patience_of(kind) for kind in ("train", "evaluate.silence_9", "train.silence_x")] == [0, 0, 0]


# ---------------------------------------------------------------- what the site's staff hears


def answered(status: int, text: str = "<html>", **headers: str) -> Exception:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("POST", "https://fed.example.org/v1/fleet/push-object")
    response = httpx.Response(status, text=text, headers=headers, request=request)
    return httpx.HTTPStatusError("", request=request, response=response)


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


def test_an_error_of_the_server_itself_is_not_called_a_proxys():
    assert in_words(answered(507)) == "The disk of the server is full. Its staff must free space."
    told = "The server answers with an error (status 500), whose cause 'fl-lightning serve' prints there."
    assert in_words(answered(500, **{"x-fl-lightning": "0.2.0"})) == told
    assert cause_at_server(answered(507)) == "The disk of the server's folder is full. Free space"
    assert "the time of this machine was changed, or another fit uses the folder." in cause_at_server(answered(401))
    assert cause_at_server(answered(500)) == cause_at_server(OSError()) == ""


def test_a_proxy_that_refuses_the_connection_is_named_with_the_fix():
    httpx = pytest.importorskip("httpx")
    said = in_words(httpx.ProxyError("407 Proxy Authentication Required"))
    assert said == (
        "The proxy of HTTPS_PROXY refuses the connection (407 Proxy Authentication Required). It asks for a login. Set "
        "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or ask for access without one."
    )
    assert in_words(httpx.ProxyError("499 Odd")).endswith("(499 Odd). Ask its administrators.")
    assert in_words(httpx.ReadTimeout("timed out")) == "The server does not answer (ReadTimeout: timed out)."


def test_trouble_is_told_if_it_lasts_and_so_is_its_end(monkeypatch):
    httpx = pytest.importorskip("httpx")
    clock, path = [0.0], Path("trouble")
    monkeypatch.setattr(flower_line.time, "monotonic", lambda: clock[0])
    trouble = Trouble(path)

    def said() -> str:
        found = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return found

    def failed(moment: float, error: Exception) -> str:
        clock[0] = moment
        trouble.failed(error)
        return said()

    gone = httpx.ConnectError("refused")
    assert not failed(0, gone)
    assert not failed(19, gone)
    trouble.worked()
    assert not failed(30, gone)
    assert failed(51, gone) == "The server does not answer (ConnectError: refused). It is tried again until it works."
    assert not failed(51, httpx.ReadError("EOF"))
    assert failed(51, answered(502)).startswith("A proxy answers instead of the server, with status 502.")
    clock[0] = 92
    trouble.worked()
    assert said() == "The server answers again, after 62 s."
