"""Let Flower free each piece of a model as soon as it has passed it on.

Flower 1.41 and its libraries keep requests and responses in cycles of objects, each with a piece of 5 MB. Python looks for
cycles by the number of objects, not by their size, so up to several models would stay in memory. Upstream:
flower#4934 frees what the SuperLink stores; for the cycles we know of no issue.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any


@functools.cache
def free_what_is_done() -> None:
    """Let all clients and servers of Flower in this process use :func:`freeing` and :func:`forgetting`."""
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware

    client: Any = ProtobufClient
    client._send = freeing(client._send)
    server: Any = ProtobufTranslationMiddleware
    server.dispatch = forgetting(server.dispatch)


def freeing(send: Callable[..., Any]) -> Callable[..., Any]:
    """Let a client free each response, and the request that it answers, when it has been read: httpx ties it to its stream.

    Args:
        send: the client's ``_send``.
    """

    def sent(client: Any, context: Any, *, stream: bool = False) -> Any:
        response = send(client, context, stream=stream)
        if not stream:
            del response.stream
        return response

    return sent


def forgetting(dispatch: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let a server free the body of each request, and the message in it, when the request has been handled.

    Args:
        dispatch: the ``dispatch`` of the middleware that reads messages.
    """

    async def dispatched(middleware: Any, request: Any, call_next: Any) -> Any:
        try:
            return await dispatch(middleware, request, call_next)
        finally:
            vars(request).pop("_body", None)
            request.scope.get("state", {}).pop("protobuf_request", None)

    return dispatched
