"""When a server answers a site's request for an order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from fl_lightning.compat.flower_supernode import Pauses
from fl_lightning.flower import waiting
from fl_lightning.flower.waiting import Held

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
LONG = 30.0


class SuperLink:
    """Keeps orders by site. A request's body is the number of the site that asks, or to which an order is pushed."""

    def __init__(self) -> None:
        self.orders = dict[bytes, int]()
        self.asked = list[bytes]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        found = b""
        if scope["path"] == PUSH:
            self.orders[body] = self.orders.get(body, 0) + 1
        elif scope["path"] == PULL:
            self.asked.append(body)
            if self.orders.get(body, 0):
                self.orders[body] -= 1
                found = b"order"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": found})


@pytest.fixture(autouse=True)
def numbers_as_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "asking", int)
    monkeypatch.setattr(waiting, "receiving", lambda body: {int(body)})


async def ask(app: Any, path: str, body: bytes) -> bytes:
    """Return the body of the answer; the request's comes in two parts."""
    parts = [{"type": "http.request", "body": body[:1], "more_body": True}, {"type": "http.request", "body": body[1:]}]
    sent = list[Any]()

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "path": path}, receive, send)
    return bytes(sent[-1]["body"])


def run(scenario: Callable[[Any, SuperLink], Any], seconds: float = LONG) -> None:
    link = SuperLink()

    async def within() -> None:
        await asyncio.wait_for(scenario(Held(link, seconds), link), LONG / 3)

    asyncio.run(within())


def test_a_site_without_an_order_so_far_is_answered_at_once() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        assert [await ask(app, PULL, b"1") for _ in range(3)] == [b""] * 3

    run(scenario)


def test_a_request_waits_for_the_next_order() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        await ask(app, PUSH, b"1")
        assert await ask(app, PULL, b"1") == b"order"
        assert await ask(app, PULL, b"1") == b""  # there might have been two
        held = asyncio.create_task(ask(app, PULL, b"1"))
        await asyncio.sleep(0.2)
        assert not held.done()
        assert link.asked == [b"1"] * 2  # it is not with the SuperLink
        await ask(app, PUSH, b"1")
        assert await held == b"order"

    run(scenario)


def test_several_orders_are_given_one_after_another() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        for _ in range(3):
            await ask(app, PUSH, b"1")
        assert [await ask(app, PULL, b"1") for _ in range(4)] == [b"order"] * 3 + [b""]

    run(scenario)


def test_another_sites_order_wakes_nobody() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        for site in (b"1", b"2"):
            await ask(app, PUSH, site)
            assert [await ask(app, PULL, site) for _ in range(2)] == [b"order", b""]
        held = {site: asyncio.create_task(ask(app, PULL, site)) for site in (b"1", b"2")}
        await asyncio.sleep(0.05)
        await ask(app, PUSH, b"2")
        assert await held[b"2"] == b"order"
        await asyncio.sleep(0.05)
        assert not held[b"1"].done()
        held[b"1"].cancel()

    run(scenario)


def test_a_request_is_answered_after_a_while_without_an_order() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        await ask(app, PUSH, b"1")
        assert [await ask(app, PULL, b"1") for _ in range(4)] == [b"order", b"", b"", b""]

    run(scenario, 0.1)


def test_other_requests_pass() -> None:
    async def scenario(app: Any, link: SuperLink) -> None:
        assert await ask(app, "/v1/fleet/push-messages", b"1") == b""
        assert await ask(app, PULL, b"1") == b""

    run(scenario)


def test_a_site_asks_again_at_once_if_its_request_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pauses = Pauses()
    for _ in range(40):
        now[0] += 0.01  # the server answers at once
        pauses.sleep(3.0)
    assert (slept[0], slept[-1]) == (0.1, 3.0)
    now[0] += 3.0  # the server has held the request
    pauses.sleep(3.0)
    assert len(slept) == 40
