"""How many pieces of models a SuperLink has in memory at a time, whatever the number of sites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fl_lightning.flower.turns import InTurn

PUSH, PULL = "/v1/fleet/push-object", "/v1/runtime/pull-object"


class Line:
    """A request whose body arrives in two parts, the second when it is let go, and whose reply is read when it is."""

    def __init__(self, path: str = PUSH, broken: bool = False) -> None:
        self.scope = {"type": "http", "path": path}
        self.body_comes, self.reply_goes = asyncio.Event(), asyncio.Event()
        self.read, self.sent, self.broken = 0, list[Any](), broken

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        if self.read == 1:
            return {"type": "http.request", "body": b"ab", "more_body": True}
        await self.body_comes.wait()
        if self.broken or self.read > 2:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"cd", "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await self.reply_goes.wait()


class App:
    """Handles a request when it is let go."""

    def __init__(self) -> None:
        self.seen, self.now, self.most = list[Any](), 0, 0
        self.goes_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(await receive())
        self.now += 1
        self.most = max(self.most, self.now)
        await self.goes_on.wait()
        self.now -= 1
        await send({"type": "http.response.start"})


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def begun(turns: InTurn, lines: list[Line]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(turns(line.scope, line.receive, line.send)) for line in lines]


def release(lines: list[Line]) -> None:
    for line in lines:
        line.body_comes.set()
        line.reply_goes.set()


@pytest.mark.parametrize("path", [PUSH, PULL])
def test_few_are_handled_at_a_time(path):
    """A reply that a slow line has not read yet does not hold up others."""

    async def test() -> None:
        app = App()
        lines = [Line(path) for _ in range(7)]
        tasks = begun(InTurn(app, handled=2, arriving=9), lines)
        for line in lines:
            line.body_comes.set()
        await settled()
        assert app.now == len(app.seen) == 2
        app.goes_on.set()
        await settled()
        assert len(app.seen) == 7
        assert app.most == 2
        assert app.seen[0] == {"type": "http.request", "body": b"abcd", "more_body": False}
        assert not any(task.done() for task in tasks)
        for line in lines:
            line.reply_goes.set()
        await asyncio.gather(*tasks)

    run(test)


def test_few_bodies_are_read_at_a_time_and_slow_ones_do_not_count():
    async def test() -> None:
        app = App()
        app.goes_on.set()
        lines = [Line() for _ in range(5)]
        tasks = begun(InTurn(app, arriving=2, lent=0.05), lines)
        await settled()
        assert [line.read for line in lines] == [2, 2, 0, 0, 0]
        while not all(line.read == 2 for line in lines):  # after the time for which a place is lent
            await asyncio.sleep(0.01)
        assert not app.seen
        release(lines)
        await asyncio.gather(*tasks)
        assert len(app.seen) == 5

    run(test)


def test_bodies_that_wait_to_be_handled_hold_up_others():
    """They are in memory, however long that takes."""

    async def test() -> None:
        app = App()
        lines = [Line() for _ in range(5)]
        tasks = begun(InTurn(app, handled=1, arriving=2, lent=0.02), lines)
        release(lines)
        await asyncio.sleep(0.1)
        assert [line.read for line in lines] == [2, 2, 2, 0, 0]  # one is handled, two wait
        app.goes_on.set()
        await asyncio.gather(*tasks)
        assert len(app.seen) == 5

    run(test)


def test_a_broken_line_gives_its_place_back():
    async def test() -> None:
        app = App()
        app.goes_on.set()
        turns = InTurn(app, handled=1, arriving=1)
        for broken in (True, True, False):
            line = Line(broken=broken)
            line.body_comes.set()
            line.reply_goes.set()
            await turns(line.scope, line.receive, line.send)
        assert [message["type"] for message in app.seen] == ["http.disconnect", "http.disconnect", "http.request"]

        async def fails(scope: Any, receive: Any, send: Any) -> None:
            raise OSError("the disk is full")

        turns = InTurn(fails, handled=1, arriving=1)
        for _ in range(2):
            line = Line()
            line.body_comes.set()
            with pytest.raises(OSError, match="the disk is full"):
                await turns(line.scope, line.receive, line.send)

    run(test)


@pytest.mark.parametrize("scope", [{"type": "http", "path": "/v1/fleet/pull-messages"}, {"type": "lifespan"}])
def test_other_requests_do_not_wait(scope):
    async def test() -> None:
        app = App()
        turns = InTurn(app, handled=1, arriving=1)
        lines = [Line() for _ in range(3)]
        tasks = begun(turns, lines)
        await settled()
        other = Line()
        task = asyncio.create_task(turns(scope, other.receive, other.send))
        await settled()
        assert app.now == 1
        assert other.read == 1
        for waiting in (*tasks, task):
            waiting.cancel()

    run(test)
