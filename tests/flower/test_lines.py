"""Slow and broken lines without Flower: what is lost is asked for again, and what is wrong is said."""

import re
from pathlib import Path

import pytest
from sites_over_bytes import LINES, LOST, configuration, disturb, federate, prepare, refused, same_bits, simulate, start_site

from fl_lightning.compat import flower_line
from fl_lightning.compat.flower_delivery import kind_of, patience_of
from fl_lightning.compat.flower_line import Trouble, in_words


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


def answered(status: int, **headers: str) -> Exception:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("POST", "https://fed.example.org/v1/fleet/push-object")
    response = httpx.Response(status, text="<html>", headers=headers, request=request)
    return httpx.HTTPStatusError("", request=request, response=response)


PROXY, SERVER = "A proxy answers instead of the server, with status", "The server"
REFUSED = "The proxy of HTTPS_PROXY refuses the connection"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (413, f"{PROXY} 413. It limits the size of requests, .* for nginx, 'client_max_body_size 16m;'"),
        (403, f"{PROXY} 403. It forbids the server's address or port. Ask for permission, or let the server use port 443"),
        (502, f"{PROXY} 502. It does not reach the server. Start 'fl-lightning serve' there, or .* 'proxy_read_timeout 300s;'"),
        (418, f"{PROXY} 418. Ask its administrators."),
        (507, "The disk of the server is full. Its staff must free space."),
        (500, rf"{SERVER} answers with an error \(status 500\), whose cause 'fl-lightning serve' prints there."),
        ("ProxyError: 407 Login", rf"{REFUSED} \(407 Login\). It asks for a login. Set HTTPS_PROXY=.*, or ask for access"),
        ("ProxyError: 499 Odd", rf"{REFUSED} \(499 Odd\). Ask its administrators."),
        ("ReadTimeout: timed out", rf"{SERVER} does not answer \(ReadTimeout: timed out\)."),
    ],
)
def test_what_is_wrong_with_a_line_is_named_with_the_fix(error, said):
    """An error of the server itself, which has a header of its own, is not called a proxy's."""
    httpx = pytest.importorskip("httpx")
    if isinstance(error, str):
        kind, _, text = error.partition(": ")
        found = getattr(httpx, kind)(text)
    else:
        found = answered(error, **({"x-fl-lightning": "0.2.0"} if error == 500 else {}))
    assert re.match(said, in_words(found))


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
