"""Flower's clients and servers free each piece of a model as soon as they have passed it on, without a search for cycles."""

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import forgetting, free_what_is_done, freeing

PIECE = 2**20


class Body(bytearray):
    """A piece of a model that a weak reference can follow."""


@contextmanager
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_response_dies_with_its_last_use():
    """httpx: the stream of a response refers to the response."""

    def send(client: Any, context: Any, *, stream: bool = False) -> Any:
        response = SimpleNamespace(content=Body(PIECE))
        response.stream = SimpleNamespace(response=response)
        return response

    with without_collection():
        response = freeing(send)(None, None)
        alive = weakref.ref(response.content)
        del response
        assert alive() is None
    assert hasattr(freeing(send)(None, None, stream=True), "stream")  # which is still to be read


@pytest.mark.parametrize("error", [None, OSError("the disk is full")])
def test_a_request_is_forgotten_when_it_has_been_handled(error):
    body = Body(PIECE)
    message = SimpleNamespace(content=body)
    request = SimpleNamespace(scope={"state": {"protobuf_request": message, "mine": 1}}, _body=body)
    seen: list[bool] = []

    async def dispatch(middleware: Any, request: Any, call_next: Any) -> str:
        seen.append(request.scope["state"]["protobuf_request"] is not None)
        if error is not None:
            raise error
        return "response"

    async def handle() -> None:
        assert await forgetting(dispatch)(None, request, None) == "response"

    with nullcontext() if error is None else pytest.raises(OSError, match="the disk is full"):
        asyncio.run(handle())
    assert seen == [True]
    assert request.scope == {"state": {"mine": 1}}
    alive = weakref.ref(body)
    del body, message
    assert alive() is None


def growth(call: Callable[[], Any]) -> float:
    """Return by how many pieces the memory grows over ten calls without a search for cycles."""
    call()
    with without_collection():
        tracemalloc.start(1)
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(10):
                call()
            return (tracemalloc.get_traced_memory()[0] - before) / PIECE
        finally:
            tracemalloc.stop()


@pytest.mark.flower
def test_flowers_own_server_and_client_keep_no_piece():
    """Flower's middleware and client over an ASGI app and a transport in this process."""
    pytest.importorskip("flwr")
    import httpx
    from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest, PushObjectResponse
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import Response
    from starlette.routing import Route

    free_what_is_done()

    def push(request: Any) -> Any:
        assert len(request.state.protobuf_request.object_content) == PIECE
        request.state.protobuf_response = PushObjectResponse(stored=True)
        return Response()

    route = Route("/v1/runtime/push-object", push, methods=["POST"])
    app = Starlette(routes=[route], middleware=[Middleware(ProtobufTranslationMiddleware)])
    headers = {"content-type": PROTOBUF_MEDIA_TYPE}

    def pushed() -> None:
        async def send() -> None:
            transport = httpx.ASGITransport(app)
            content = PushObjectRequest(object_content=bytes(PIECE)).SerializeToString()
            response = await transport.handle_async_request(
                httpx.Request("POST", "http://here/v1/runtime/push-object", headers=headers, content=content)
            )
            assert response.status_code == 200

        asyncio.run(send())

    def pulled() -> None:
        client = ProtobufClient("http://here")
        answer = PullObjectResponse(object_found=True, object_content=bytes(PIECE)).SerializeToString()
        client._client = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=answer)))
        for _ in range(3):
            request = PushObjectRequest(object_content=bytes(PIECE))
            found = client._unary_unary(path="/x", rpc_method="x", request=request, response_type=PullObjectResponse)
            assert len(found.object_content) == PIECE

    assert growth(pushed) < 4
    assert growth(pulled) < 4
