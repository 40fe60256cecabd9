"""Let a SuperLink hold few pieces of models in memory at a time, however many sites send and receive them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

_OBJECTS = re.compile(r"/v1/(fleet|runtime)/(push|pull)-object")
"""The paths of requests that carry a piece of a model in one direction."""
_HANDLED = 2
"""The requests whose pieces are in several copies at a time: as bytes, as a message, and in the database."""
_PART = 2**17
"""The bytes that a connection is given at a time, and up to which a body needs no file."""


class InTurn:
    """Handle a few requests with pieces at a time; what arrives or leaves meanwhile, however slowly, is in files.

    Args:
        app: the SuperLink's ASGI app.
        folder: where the files are, which have no name; the folder exists when the first request arrives.
        handled: the requests that are handled at a time.
    """

    def __init__(self, app: Any, folder: Path, handled: int = _HANDLED) -> None:
        self._app, self._folder = app, folder
        self._handled = asyncio.Semaphore(handled)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on when it is its turn, and its response when it is complete."""
        if scope["type"] != "http" or not _OBJECTS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        start = list[Any]()
        with self._file() as request, self._file() as response:

            async def given() -> Any:
                if request.closed:
                    return await receive()
                request.seek(0)
                with request:
                    return {"type": "http.request", "body": request.read(), "more_body": False}

            async def kept(message: Any) -> None:
                if message["type"] == "http.response.body":
                    _write(response, message)
                else:
                    start.append(message)

            if not await _arrived(request, receive):
                return
            async with self._handled:
                await self._app(scope, given, kept)
            for message in start:
                await send(message)
            for part in _parts(response):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _file(self) -> SpooledTemporaryFile[bytes]:
        return SpooledTemporaryFile(_PART, dir=str(self._folder))


async def _arrived(file: SpooledTemporaryFile[bytes], receive: Any) -> bool:
    """Write a request's body to a file, and return False if its line breaks."""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return False
        _write(file, message)
        if not message.get("more_body", False):
            return True


def _write(file: SpooledTemporaryFile[bytes], message: Any) -> None:
    body = message.get("body", b"")
    if len(body) > _PART:
        file.rollover()  # else the body would be copied in memory before it is written
    file.write(body)
    file.flush()  # a full disk is an error here, where nothing has been sent yet


def _parts(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while part := file.read(_PART):
        yield part
