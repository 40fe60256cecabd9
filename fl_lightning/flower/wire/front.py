"""Let only the sites' paths through to a SuperLink from outside."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fl_lightning.compat.flower import FLEET

_ALLOWED = re.compile(re.escape(FLEET) + r"[a-z]+(-[a-z]+)*")
_LARGEST = 64 * 2**20
"""The largest accepted request in bytes; Flower sends tensors in parts of 5 MB."""

VERSION = "x-fl-lightning"
"""The header with the server's version."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class OnlyFleet:
    """Answer every request with 404 that arrives at the public port and is not a site's.

    Args:
        app: the SuperLink's ASGI app.
        public_port: the port that is reachable from outside; requests at other ports pass.
        version: the version that replies to sites carry in a header, for ``fl-lightning site --check``.
    """

    def __init__(self, app: App, public_port: int, version: str = "") -> None:
        self._app, self._public_port, self._version = app, public_port, version.encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or scope["server"][1] != self._public_port:
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif not passes(scope):
            await _refuse(send, 404)
        elif _length(scope) > _LARGEST:
            await _refuse(send, 413)
        else:
            await self._app(scope, receive, self._with_version(send))

    def _with_version(self, send: Any) -> Any:
        async def told(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (VERSION.encode(), self._version)]
            await send(message)

        return told


def passes(scope: Scope) -> bool:
    """Return whether a request is a POST to one of the sites' paths, by the path as it was sent and as it was decoded."""
    raw = scope.get("raw_path", b"").decode("latin-1")
    return scope["method"] == "POST" and scope["path"] == raw and _ALLOWED.fullmatch(raw) is not None


def _length(scope: Scope) -> int:
    given = dict(scope["headers"]).get(b"content-length", b"")
    return int(given) if given.isdigit() else _LARGEST + 1  # a body of unknown length is refused


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
