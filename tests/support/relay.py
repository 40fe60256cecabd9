"""A line between a site and its server that is slow and breaks: a relay of TCP on loopback, and a proxy for HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

_PIECE = 16384
_BUFFER = 65536
"""The bytes that the system may hold of a connection: with its usual megabytes, a slow line would look fast for a while."""


class Relay:
    """Pass on connections to a port, at most so many bytes per second in each direction for all of them together.

    Args:
        target: the port on loopback.
        rate: bytes per second each way; None for no limit.
        connect: whether it is a proxy, which wants ``CONNECT`` first; it connects to ``target`` whatever is asked for.
        status: what the proxy answers to ``CONNECT``; with 200 it opens a tunnel.
    """

    def __init__(self, target: int, rate: float | None = None, *, connect: bool = False, status: int = 200) -> None:
        self.target, self.rate, self.connect, self.status = target, rate, connect, status
        self.bytes = {"up": 0, "down": 0}
        self.asked: list[str] = []
        self._free = {"up": 0.0, "down": 0.0}  # when each direction has sent what it was given
        self._until = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._listening.bind(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait(10)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._drop)
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def cut(self, seconds: float) -> None:
        """Break the line: drop all connections, and refuse new ones for so many seconds."""
        self._until = time.monotonic() + seconds
        self._loop.call_soon_threadsafe(self._drop)

    @property
    def is_cut(self) -> bool:
        """Whether the line is broken now."""
        return time.monotonic() < self._until

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connected, sock=self._listening)
        self._ready.set()
        await self._end.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            if self.connect and not await self._tunnels(reader, writer):
                return
            there = socket.socket()
            there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            there.setblocking(False)
            await self._loop.sock_connect(there, ("127.0.0.1", self.target))
            far_reader, far_writer = await asyncio.open_connection(sock=there)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pump(reader, far_writer, "up"), self._pump(far_reader, writer, "down"))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _tunnels(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read what a client asks of the proxy, and answer."""
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {self.status} By the proxy\r\n\r\n".encode())
        await writer.drain()
        return self.status == 200

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        writer.transport.set_write_buffer_limits(_BUFFER)
        while content := await reader.read(_PIECE):
            if self.rate:
                begin = max(self._loop.time(), self._free[way])
                self._free[way] = begin + len(content) / self.rate
                await asyncio.sleep(self._free[way] - self._loop.time())
            self.bytes[way] += len(content)
            writer.write(content)
            await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
