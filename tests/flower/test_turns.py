"""How much of models a SuperLink has in memory at a time, whatever the number of sites."""

import asyncio
import resource
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fl_lightning.flower.wire.gate import InTurn

PUSH, PULL = "/v1/fleet/push-object", "/v1/runtime/pull-object"
PIECE = bytes(range(256)) * 2**13
"""2 MiB."""


class Line:
    """A request whose body arrives in parts, the last when it is let go, and whose reply is read when it is."""

    def __init__(self, path: str = PUSH, parts: Sequence[bytes] = (b"ab", b"cd"), broken: bool = False) -> None:
        self.scope = {"type": "http", "path": path}
        self.body_comes, self.reply_goes = asyncio.Event(), asyncio.Event()
        self.parts, self.read, self.sent, self.broken = parts, 0, list[Any](), broken

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        if self.read < len(self.parts):
            return {"type": "http.request", "body": self.parts[self.read - 1], "more_body": True}
        await self.body_comes.wait()
        if self.broken or self.read > len(self.parts):
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.parts[-1], "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await self.reply_goes.wait()

    def release(self) -> None:
        self.body_comes.set()
        self.reply_goes.set()


class App:
    """Handles a request when it is let go, and replies with what it got, or with something of its own."""

    def __init__(self, reply: bytes | None = None, error: Exception | None = None) -> None:
        self.seen, self.now, self.most, self.reply, self.error = 0, 0, 0, reply, error
        self.goes_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        self.seen, self.now = self.seen + 1, self.now + 1
        self.most = max(self.most, self.now)
        await self.goes_on.wait()
        self.now -= 1
        await send({"type": "http.response.start"})
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.body", "body": body if self.reply is None else self.reply})


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def begun(turns: InTurn, lines: list[Line]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(turns(line.scope, line.receive, line.send)) for line in lines]


async def answered(app: App, line: Line, turns: InTurn | None = None) -> None:
    """Handle a request that has arrived, and whose reply is read."""
    app.goes_on.set()
    line.release()
    await (turns or InTurn(app, Path.cwd()))(line.scope, line.receive, line.send)


@pytest.mark.parametrize("path", [PUSH, PULL])
def test_few_are_handled_at_a_time(path):
    """A reply that a slow line has not read yet does not hold up others."""

    async def test() -> None:
        app, lines = App(), [Line(path) for _ in range(7)]
        tasks = begun(InTurn(app, Path.cwd(), handled=2), lines)
        for line in lines:
            line.body_comes.set()
        await settled()
        assert app.now == app.seen == 2
        app.goes_on.set()
        await settled()
        assert app.seen == 7
        assert app.most == 2
        assert not any(task.done() for task in tasks)
        for line in lines:
            line.release()
        await asyncio.gather(*tasks)

    run(test)


@pytest.mark.parametrize("sizes", [(0,), (2**17,), (2**17 + 1,), (1, 3 * 2**17, 0, 2**20)])
def test_bodies_pass_unchanged_in_parts_of_which_a_connection_has_one(sizes):
    async def test() -> None:
        line = Line(parts=[PIECE[:size] for size in sizes])
        await answered(App(), line)
        start, *parts, last = line.sent
        assert start == {"type": "http.response.start"}
        assert b"".join(part["body"] for part in parts) == b"".join(line.parts)
        assert all(0 < len(part["body"]) <= 2**17 and part["more_body"] for part in parts)
        assert last == {"type": "http.response.body", "body": b"", "more_body": False}

    run(test)


@pytest.mark.parametrize(("where", "seen", "pieces"), [("arrives", 0, 1), ("waits", 1, 2), ("leaves", 20, 1)])
def test_what_is_not_handled_is_not_in_memory(where, seen, pieces):
    async def test() -> None:
        app, lines = App(), [Line(parts=(PIECE, b"")) for _ in range(20)]
        tasks = begun(InTurn(app, Path.cwd(), handled=1), lines)
        for line in lines if where != "arrives" else ():
            line.body_comes.set()
        if where == "leaves":
            app.goes_on.set()
        await settled()
        assert app.seen == seen
        assert all(line.sent for line in lines) == (where == "leaves")
        assert tracemalloc.get_traced_memory()[0] - before < pieces * len(PIECE) + 20 * 2**18
        for line in lines:
            line.release()
        app.goes_on.set()
        await asyncio.gather(*tasks)
        assert not list(Path().iterdir())

    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        run(test)
    finally:
        tracemalloc.stop()


def test_a_broken_line_and_an_error_give_their_places_back():
    async def test() -> None:
        app, failing = App(), App(error=OSError("the disk is full"))
        turns = InTurn(app, Path.cwd(), handled=1)
        for broken in (True, True, False):
            line = Line(broken=broken)
            await answered(app, line, turns)
            assert bool(line.sent) == (not broken)
        assert app.seen == 1
        turns = InTurn(failing, Path.cwd(), handled=1)
        for line in (Line(), Line()):
            with pytest.raises(OSError, match="the disk is full"):
                await answered(failing, line, turns)
            assert not line.sent

    run(test)


@pytest.mark.parametrize("asked", [PIECE, b""])
def test_a_full_disk_is_an_error_before_anything_is_sent(asked):
    """A limit on the size of files stands for it."""

    async def test() -> None:
        line = Line(parts=(asked,))
        with pytest.raises(OSError, match="File too large"):
            await answered(App(PIECE), line)
        assert not line.sent

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        run(test)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("scope", [{"type": "http", "path": "/v1/fleet/pull-messages"}, {"type": "lifespan"}])
def test_other_requests_do_not_wait(scope):
    async def test() -> None:
        app, lines, other = App(), [Line() for _ in range(3)], Line()
        turns = InTurn(app, Path.cwd(), handled=1)
        tasks = begun(turns, lines)
        for line in lines:
            line.body_comes.set()
        await settled()
        assert app.now == 1
        tasks.append(asyncio.create_task(turns(scope, other.receive, other.send)))
        await settled()
        assert app.now == 2
        assert other.read == 1
        for waiting in tasks:
            waiting.cancel()

    run(test)
