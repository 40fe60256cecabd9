"""Stand before a SuperLink: let in what sites sign, hold few pieces of models at a time, and say if the disk is full."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from fl_lightning.compat.flower import FLEET, VERSION
from fl_lightning.compat.flower_line import DISK_FULL

_ALLOWED = re.compile(re.escape(FLEET) + r"[a-z]+(-[a-z]+)*")
_OBJECTS = re.compile(r"/v1/(fleet|runtime)/(push|pull)-object")
"""The paths of requests that carry a piece of a model in one direction."""
_LARGEST = 16 * 2**20
"""The largest accepted request in bytes, and the room on the disk below which it counts as full; a piece has 5 MB."""
_HANDLED = 2
"""The requests whose pieces are in several copies at a time: as bytes, as a message, and in the database."""
_PART = 2**17
"""The bytes that a connection is given at a time, and up to which a body needs no file."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class Gate:
    """Refuse at the public port what no registered site has signed, before anything of its body is read.

    Args:
        app: the SuperLink's ASGI app.
        folder: a folder on the disk that the SuperLink writes.
        public_port: the port that is reachable from outside; requests at other ports pass.
        signed: tells by a request's headers whether a registered site has signed it.
        version: the version that replies carry in a header, for ``fl-lightning site --check``.
    """

    def __init__(
        self, app: App, folder: Path, public_port: int, signed: Callable[[Mapping[str, str]], bool], version: str = ""
    ) -> None:
        self._app, self._folder, self._public_port, self._signed = app, folder, public_port, signed
        self._header = VERSION.encode(), version.encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        answered = False

        async def tell(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                if message["status"] == 500 and self._is_full():
                    message["status"] = DISK_FULL
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        try:
            status = await self._refusal(scope) if scope["server"][1] == self._public_port else 0
            await (_refuse(tell, status) if status else self._app(scope, receive, tell))
        except Exception:
            if answered or not self._is_full():
                raise
            await _refuse(tell, DISK_FULL)

    async def _refusal(self, scope: Scope) -> int:
        """Return the status with which a request from outside is refused; 0 for none."""
        raw = scope.get("raw_path", b"").decode("latin-1")  # as it was sent, which must be as it was decoded
        if scope["method"] != "POST" or scope["path"] != raw or not _ALLOWED.fullmatch(raw):
            return 404
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _LARGEST:  # also a body of unknown length
            return 413
        return 0 if await asyncio.to_thread(self._signed, headers) else 401

    def _is_full(self) -> bool:
        return shutil.disk_usage(self._folder).free < _LARGEST


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


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
