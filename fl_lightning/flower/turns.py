"""Let a SuperLink handle few large requests at a time, so that its memory does not grow with the number of sites."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any

_OBJECTS = re.compile(r"/v1/(fleet|runtime)/(push|pull)-object")
"""The paths of requests that carry a piece of a model in one direction."""
_HANDLED = 2
"""The requests whose pieces are in several copies at a time: as bytes, as a message, and in the database."""
_ARRIVING = 8
"""The requests whose bodies are read, or wait to be handled, at a time, unless their lines are slow."""
_LENT = 1.0
"""The seconds after which a body that still arrives no longer holds up others."""


class InTurn:
    """Read the bodies of a few requests with pieces at a time, and handle fewer; the others wait in their connections.

    Args:
        app: the SuperLink's ASGI app.
        handled: the requests that are handled at a time.
        arriving: the bodies that are read at a time.
        lent: the seconds after which a body no longer counts.
    """

    def __init__(self, app: Any, handled: int = _HANDLED, arriving: int = _ARRIVING, lent: float = _LENT) -> None:
        self._app, self._lent = app, lent
        self._handled, self._arriving = asyncio.Semaphore(handled), asyncio.Semaphore(arriving)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on when it is its turn."""
        if scope["type"] != "http" or not _OBJECTS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        await self._arriving.acquire()
        arriving = _Turn(self._arriving)
        try:
            body = [await self._whole(receive, arriving)]
            await self._handled.acquire()
        finally:
            arriving.end()
        turn = _Turn(self._handled)

        async def given() -> Any:
            return body.pop() if body else await receive()

        async def sent(message: Any) -> None:
            turn.end()  # a slow line must not hold up others
            await send(message)

        try:
            await self._app(scope, given, sent)
        finally:
            turn.end()

    async def _whole(self, receive: Any, turn: _Turn) -> dict[str, Any]:
        """Return the whole body as one message; its turn ends before if the line is slow."""
        timer = asyncio.get_running_loop().call_later(self._lent, turn.end)
        parts = list[bytes]()
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":  # the line is broken
                    return dict(message)
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return {"type": "http.request", "body": b"".join(parts), "more_body": False}
        finally:
            timer.cancel()


class _Turn:
    """Hold a place of a semaphore until :meth:`end` is called, once or more often."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def end(self) -> None:
        """Give the place to the next request."""
        if self._places is not None:
            self._places.release()
            self._places = None
