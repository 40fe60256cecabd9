"""The parts of a real federation that need neither Flower nor a network."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower_server import Node
from fl_lightning.compat.flower_superlink import seldom
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.wire.gate import Gate
from fl_lightning.flower.wire.pool import FlowerPool
from fl_lightning.flower.wire.requirements import address_of
from fl_lightning.flower.wire.server_folder import ServerFolder
from fl_lightning.messages import ClientInfo

KEY = {"flwr-public-key": "of a site"}


def status(
    path: str = "/v1/fleet/push-object",
    method: str = "POST",
    port: int = 8443,
    raw: bytes | None = None,
    length: str | None = "0",
    kind: str = "http",
    key: dict[str, str] = KEY,
    answer: int | Exception = 200,
) -> int:
    """Return what a server answers; 200 is the SuperLink's, which alone may read the body."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        await send({"type": "http.response.start", "status": answer, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = key if length is None else {**key, "content-length": length}
    scope = {"type": kind, "server": ("0.0.0.0", port), "method": method, "path": path}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope["raw_path"] = path.encode() if raw is None else raw
    gate = Gate(app, Path.cwd(), 8443, lambda headers: headers.get("flwr-public-key") == "of a site", "1.2.3")
    asyncio.run(gate(scope, None, send))  # type: ignore[arg-type]
    if kind == "http":
        assert (b"x-fl-lightning", b"1.2.3") in sent[0]["headers"]
    return int(sent[0].get("status", sent[0].get("code")))


OUTSIDE = ("/v1/control/list-nodes", "/v1/fleet/../control/x", "//v1/fleet/x", "/v1/fleet//x", "/v1/fleet/x/", "/v1/fleet/")


def test_the_gate_passes_the_sites_paths_only():
    assert status("/v1/fleet/pull-messages") == status("/v1/control/list-nodes", port=8444) == 200
    outside = (*OUTSIDE, "/docs", "/V1/FLEET/x", "/v1/fleet/pull-messages\n")
    assert {path: status(path) for path in outside} == dict.fromkeys(outside, 404)
    assert status("/v1/fleet/pull-messages", method="GET") == 404
    assert status("/v1/control/list-nodes", raw=b"/v1/fleet/%2e%2e/control/list-nodes") == 404
    assert status("/v1/fleet/pull-messages", raw=b"/v1/fleet/pull%2dmessages") == 404


def test_the_gate_refuses_what_no_site_has_signed_bodies_of_unknown_or_absurd_length_and_other_protocols():
    """Without reading the body, which is None here: 16 connections filled a gigabyte of the server's disk."""
    lengths = {str(16 * 2**20): 200, str(16 * 2**20 + 1): 413, None: 413, "-1": 413}
    assert {length: status(length=length) for length in lengths} == lengths
    assert status(key={}) == status(key={"flwr-public-key": "of another"}) == 401
    assert status(key={}, port=8444) == 200
    assert status(kind="websocket") == 1000


@pytest.mark.parametrize("port", [8443, 8444])
def test_a_full_disk_is_told_to_sites_and_fits(port, monkeypatch):
    """It read as a lost SuperLink, or as a proxy's error."""
    full = OSError(28, "No space left on device")
    assert status(answer=500, port=port) == 500
    with pytest.raises(OSError, match="No space left"):
        status(answer=full, port=port)
    monkeypatch.setattr("fl_lightning.flower.wire.gate.shutil.disk_usage", lambda folder: SimpleNamespace(free=10_000))
    assert status(answer=500, port=port) == 507
    assert status(answer=full, port=port) == 507
    assert status(answer=200, port=port) == 200
    assert status(answer=401, port=port) == 401


def test_a_clean_up_waits_until_its_pause_is_over():
    """For all states of the process together."""
    for pause, cleaned in ((0, ["one", "another"]), (1000, ["one"])):
        calls: list[str] = []
        clean = seldom(calls.append, pause)
        clean("one")
        clean("another")
        assert calls == cleaned


def waits(pool, names, found, monkeypatch):
    """Return what a pool finds when these sites are registered and these (name to online) exist at the SuperLink."""
    nodes = [Node(10 + k, name, online) for k, (name, online) in enumerate(found.items())]
    link = SimpleNamespace(nodes=lambda: nodes, close=lambda: None)
    monkeypatch.setattr("fl_lightning.flower.wire.pool.ControlLink", lambda address, certificate: link)
    return pool._wait("127.0.0.1:1", b"", names)


def test_a_fit_waits_for_all_sites_or_for_enough(monkeypatch):
    names, online = ("a", "b", "c"), {"a": True, "b": False, "c": True}
    assert waits(FlowerPool(wait=0), names, dict.fromkeys(names, True), monkeypatch) == {"a": 10, "b": 11, "c": 12}
    with pytest.raises(ConfigurationError, match=r"not online after 0 s: b\. Start"):
        waits(FlowerPool(wait=0), names, online, monkeypatch)
    assert waits(FlowerPool(wait=0, min_sites=2), names, online, monkeypatch) == {"a": 10, "b": 11, "c": 12}
    with pytest.raises(ConfigurationError, match=r"0 s: b\. .*continue with the 2 others"):
        waits(FlowerPool(wait=0, min_sites=3), names, online, monkeypatch)
    del online["b"]
    with pytest.raises(ConfigurationError, match=r"0 s: b \(revoked\)\..*set 'federation.pool.min_sites'"):
        waits(FlowerPool(wait=0), names, online, monkeypatch)
    assert waits(FlowerPool(wait=60, min_sites=2), names, online, monkeypatch) == {"a": 10, "c": 11}


def test_a_folder_remembers_what_sites_told(tmp_path):
    folder = ServerFolder(tmp_path)
    assert folder.descriptions() == {}
    told = [ClientInfo("a", 30, (10, 20), 1, 2, ("x", "y")), ClientInfo("b", 5)]
    folder.describe(told[:1])
    folder.describe(told[1:])
    assert ServerFolder(tmp_path).descriptions() == dict(zip("ab", told, strict=True))
    (tmp_path / "descriptions").write_bytes(b"damaged")
    assert folder.descriptions() == {}


def test_addresses():
    given = {"https://fed.example.org:8443": "fed.example.org:8443", "fed.example.org": "fed.example.org:443"}
    given["https://[::1]:9/"] = "[::1]:9"
    assert {server: address_of(server) for server in given} == given
