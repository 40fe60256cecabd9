"""Keep a SuperNode at work over a line that is slow, that breaks, or that a proxy watches.

Flower 1.41 retries what a broken connection stopped, but not every kind: an error whose text has 'ssl' in it, a connection that
a proxy refuses, and a proxy's own error page end the transfer, and the message is lost. A piece of 5 MB must be written
within 30 s. The thread of the heartbeats ends at the first unexpected answer. Upstream: flower#4512 (what is retried); for the
others we know of no issue.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.compat.flower import VERSION

TOO_LARGE = 413
"""The status of a proxy that limits the size of a request."""
DISK_FULL = 507
"""The status with which a server answers whose disk is full."""
_PIECE = 1 << 16
"""The bytes of a request that are written at a time: each of them may take as long as Flower allows for the whole."""
_UNSENT = 1 << 19
"""The bytes that the system may hold of a connection. By default it takes a piece at once, and the limit of 30 s for the answer
would include the time that the piece travels."""
_BEAT = 10.0
"""The seconds for which a heartbeat waits for each step of its answer; beside a model on a slow line, 5 are too few."""
_QUIET = 20.0
"""The seconds of trouble after which a site's staff hears of it."""
_FIXES = {
    403: "It forbids the server's address or port. Ask for permission, or let the server use port 443 (fl-lightning serve "
    "--port 443).",
    407: "It asks for a login. Set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or ask for access without one.",
    TOO_LARGE: "It limits the size of requests, but a model travels in pieces of 5 MB. Let it take 16 MB: for nginx, "
    "'client_max_body_size 16m;'.",
    **dict.fromkeys(
        (502, 503, 504),
        "It does not reach the server. Start 'fl-lightning serve' there, or let the proxy wait longer: for nginx, "
        "'proxy_read_timeout 300s;'.",
    ),
}


def fix_of(status: int) -> str:
    """Return what to do about a proxy that answers with a status."""
    return _FIXES.get(status, "Ask its administrators.")


def status_of(error: BaseException) -> int:
    """Return the status of the response that an error is about; 0 for none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def in_words(error: BaseException) -> str:
    """Return what is wrong with the line, and the fix."""
    import httpx

    status = status_of(error)
    if status == DISK_FULL:
        return "The disk of the server is full. Its staff must free space."
    if isinstance(error, httpx.HTTPStatusError) and VERSION in error.response.headers:
        return f"The server answers with an error (status {status}), whose cause 'fl-lightning serve' prints there."
    if status:
        return f"A proxy answers instead of the server, with status {status}. {fix_of(status)}"
    if isinstance(error, httpx.ProxyError):
        status = next((number for number in _FIXES if str(error).startswith(str(number))), 0)
        return f"The proxy of HTTPS_PROXY refuses the connection ({error}). {fix_of(status)}"
    return f"The server does not answer ({type(error).__name__}{f': {error}' if str(error) else ''})."


def cause_at_server(error: BaseException) -> str:
    """Return why the SuperLink refuses a process on its own machine, and the fix, without a full stop; empty for others."""
    if status_of(error) == DISK_FULL:
        return "The disk of the server's folder is full. Free space"
    if status_of(error) == 401:
        return (
            "The SuperLink no longer knows this fit as the one that has the run (status 401): the time of this machine was "
            "changed, or another fit uses the folder. Correct the time, or end the other fit"
        )
    return ""


def is_of_the_line(error: BaseException) -> bool:
    """Return whether an error may pass by itself: of the connection, or of a proxy, but not one that the SuperLink answers."""
    import httpx
    from flwr.supercore.error import FlowerError

    if isinstance(error, httpx.HTTPStatusError):
        status = status_of(error)
        return status >= 500 or (status != 401 and FlowerError.from_json(error.response.text) is None)
    return isinstance(error, httpx.TransportError) and "certificate verify failed" not in str(error).lower()


class Trouble:
    """Tell the site's staff what is wrong with the line, in a file that the parent process reads.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.RLock()
        self._since: float | None = None
        self._told = ""

    def failed(self, error: BaseException) -> None:
        """Note an attempt that failed; tell it if trouble lasts."""
        with self._lock:
            now, words = time.monotonic(), in_words(error)
            self._since = now if self._since is None else self._since
            kind = words.partition(" (")[0]  # a broken line has many errors
            if kind != self._told and now - self._since >= _QUIET:
                self.tell(f"{words} It is tried again until it works.")
                self._told = kind

    def worked(self) -> None:
        """Note that an attempt worked."""
        with self._lock:
            if self._told and self._since is not None:
                self.tell(f"The server answers again, after {time.monotonic() - self._since:.0f} s.")
            self._since, self._told = None, ""

    def tell(self, line: str) -> None:
        """Write a line for the parent process, unless the disk is full."""
        with self._lock, contextlib.suppress(OSError):
            new = self._path.with_suffix(".new")
            new.write_text(line, encoding="utf-8")
            new.replace(self._path)


class LostError(Exception):
    """A message could not be sent or received, so that only another SuperNode of the site gets it again."""


def last(path: Path) -> None:
    """Change the SuperNode of this process.

    Args:
        path: the file for the staff.
    """
    trouble = Trouble(path)
    line: Any = import_module("flwr.supernode.fleet_http_connection")
    client: Any = import_module("flwr.supernode.fleet_http_client")
    loop: Any = import_module("flwr.supernode.start_client_internal")
    made = line.make_simple_http_retry_invoker
    line.make_simple_http_retry_invoker = lambda: retrying(made(), trouble)
    line.FleetHttpClient = in_pieces(line.FleetHttpClient)
    sender = line.HeartbeatSender
    line.HeartbeatSender = lambda beat: sender(surviving(beat))
    client.HEARTBEAT_CALL_TIMEOUT = _BEAT
    loop._pull_and_store_message = noticing(loop._pull_and_store_message, ("pull_object", "confirm_message_received"))
    loop._push_messages = noticing(loop._push_messages, ("send", "push_object"))


def retrying(invoker: Any, trouble: Trouble) -> Any:
    """Let a retry policy of Flower give up nothing that may pass by itself.

    Args:
        invoker: its policy for HTTP.
        trouble: tells of it.
    """
    import httpx

    gives_up = invoker.should_giveup
    invoker.recoverable_exceptions = (httpx.TransportError, httpx.HTTPStatusError)
    invoker.should_giveup = lambda error: not is_of_the_line(error) and gives_up(error)
    invoker.on_backoff = lambda state: trouble.failed(state.exception)
    invoker.on_success = lambda state: trouble.worked()
    return invoker


def in_pieces(client: type[Any]) -> type[Any]:
    """Return a client that writes requests a little at a time, so that its time limit is one on silence.

    Args:
        client: ``FleetHttpClient``.
    """
    import httpx

    class Client(client):  # type: ignore[misc]
        def _send(self, context: Any, *, stream: bool = False) -> Any:
            context.request.extensions = {**context.request.extensions, "trace": _hold_little}
            if len(context.request.content) > _PIECE:
                view = memoryview(context.request.content)
                parts: Any = (view[start : start + _PIECE] for start in range(0, len(view), _PIECE))
                context.request.stream = httpx.Request("POST", context.request.url, content=parts).stream
            return super()._send(context, stream=stream)

    return Client


def _hold_little(event: str, about: Mapping[str, Any]) -> None:
    if event == "connection.connect_tcp.complete":
        about["return_value"].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT)


def surviving(beat: Callable[[], bool]) -> Callable[[], bool]:
    """Return a heartbeat that counts any error as a failed attempt."""

    def beats() -> bool:
        with contextlib.suppress(Exception):
            return beat()
        return False

    return beats


def noticing(step: Callable[..., Any], calls: tuple[str, ...]) -> Callable[..., Any]:
    """Let the SuperNode end if it had to drop a message: the SuperLink delivers it to the next one.

    Flower logs the error and forgets the message, for which the server would wait. If the run has ended, it must drop the
    message as after a broken connection: otherwise a worker takes its task and waits for the contents forever, because
    ``RunNotRunningException`` is no ``Exception`` there.

    Args:
        step: a step of the SuperNode's main loop.
        calls: the arguments that speak with the SuperLink.
    """
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
    from flwr.supercore.run import RunNotRunningException

    def stepped(**given: Any) -> Any:
        errors: list[BaseException] = []

        def noting(call: Callable[..., Any]) -> Callable[..., Any]:
            def ask(*arguments: Any) -> Any:
                try:
                    return call(*arguments)
                except RunNotRunningException as error:
                    raise RuntimeError("the run has ended") from error
                except ObjectUnavailableError:  # which Flower tries again
                    raise
                except Exception as error:
                    errors.append(error)
                    raise

            return ask

        done = step(**{name: noting(value) if name in calls else value for name, value in given.items()})
        if errors:
            raise LostError(f"A message was lost: {errors[0]}") from errors[0]
        return done

    return stepped
