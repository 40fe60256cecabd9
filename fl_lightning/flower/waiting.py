"""Hold a site's request for an order until there is one: it would otherwise ask often, or learn of an order late."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from fl_lightning.compat.flower_delivery import HELD
from fl_lightning.compat.flower_runtime import asking, receiving
from fl_lightning.flower.turns import whole_body

_PULL, _PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"


class Held:
    """Hold the requests of sites that have had an order, until the next one comes or for a while.

    Args:
        app: the SuperLink's ASGI app.
        seconds: the longest time, > 0.
    """

    def __init__(self, app: Any, seconds: float = HELD) -> None:
        self._app, self._seconds = app, seconds
        self._news = dict[int, asyncio.Event]()
        """By site: whether it may have an order. Only orders add to it, since a stranger's request must not take memory."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on when its site may have an order."""
        path = scope["path"] if scope["type"] == "http" else None
        if path not in (_PULL, _PUSH):
            await self._app(scope, receive, send)
            return
        whole = await whole_body(receive)
        body, given = whole.get("body", b""), [whole]

        async def received() -> Any:
            return given.pop() if given else await receive()

        if path == _PUSH:
            await self._app(scope, received, send)
            for node in receiving(body):
                self._news.setdefault(node, asyncio.Event()).set()
        else:
            await self._pull(scope, received, send, self._news.get(asking(body) or 0))

    async def _pull(self, scope: MutableMapping[str, Any], receive: Any, send: Any, news: asyncio.Event | None) -> None:
        if news is None:
            await self._app(scope, receive, send)
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(news.wait(), self._seconds)
        news.clear()

        async def sent(message: Any) -> None:
            if message.get("body"):  # an order, so there may be another one
                news.set()
            await send(message)

        await self._app(scope, receive, sent)
