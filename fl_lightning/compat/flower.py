"""Use Flower as a transport of bytes: what its processes share, with the versions that they have.

Everything private of flwr is in this module and its neighbours ``flower_*``, for the minor version in ``pyproject.toml``.
Each function says what of Flower it stands in for. Messages are opaque bytes: no content is pickled, and the app bundle that
Flower requires of a run is a stub without code, which neither side unpacks.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

FLOWER = "1.42"
"""The minor version of flwr whose private names are used here, at the server and at all sites."""
VERSION = "x-fl-lightning"
"""The header with the server's version of fl_lightning."""
FLEET = "/v1/fleet/"
"""The paths that sites use; nothing else of a SuperLink must be reachable from outside."""
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def installed_version() -> str | None:
    """Return the minor version of flwr, such as 1.42, or None if it is not installed."""
    try:
        return ".".join(version("flwr").split(".")[:2])
    except PackageNotFoundError:
        return None


def prepare_environment() -> None:
    """Disable Flower's telemetry and update check, before flwr is imported, and any proxy for this machine's own addresses."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        given = [one for one in os.environ.get(name, "").split(",") if one]
        os.environ[name] = ",".join(dict.fromkeys([*given, "127.0.0.1", "localhost"]))


# ---------------------------------------------------------------- memory


@functools.cache
def free_what_is_done() -> None:
    """Let Flower free each piece of a model as soon as it has passed it on, in all clients and servers of this process.

    Flower and its libraries keep requests and responses in cycles of objects, each with a piece of 5 MB. Python looks for
    cycles by the number of objects, not by their size, so up to several models would stay in memory. Upstream:
    flower#4934 frees what the SuperLink stores; for the cycles we know of no issue.
    """
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


# ---------------------------------------------------------------- the Runtime API, which server and sites share


def patient(seconds: float, tell: Callable[[Any], None] | None = None) -> Any:
    """Return a retry policy that gives up, in place of Flower's, which retries forever and interrupts the process.

    Args:
        seconds: the seconds after which it gives up.
        tell: is called after each success, with the number of attempts as ``tries``.
    """
    import httpx
    from flwr.supercore.retry import RetryInvoker, exponential

    def final(error: Exception) -> bool:
        return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (502, 503, 504)

    recoverable = (httpx.TransportError, httpx.HTTPStatusError)
    return RetryInvoker(lambda: exponential(max_delay=5), recoverable, None, seconds, on_success=tell, should_giveup=final)


def runtime(
    address: str, certificate: bytes | None, component: str, *, secret: bytes = b"", token: str = "", policy: Any = None
) -> Any:
    """Return a client of a Runtime API.

    Args:
        address: its address, host and port.
        certificate: the CA's certificate; None for no TLS, which only loopback allows.
        component: what the process calls itself.
        secret: the secret that allows a process to acquire tasks; empty with a token.
        token: the token of the task that it works on.
        policy: the retry policy; None for one of 30 s.
    """
    from flwr.supercore import interceptors as by
    from flwr.supercore.runtime import RuntimeHttpClient

    free_what_is_done()
    if token:
        allowed: Any = by.RuntimeTokenHttpInterceptor(token)
    else:
        allowed = by.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificate is None,
        root_certificates=certificate,
        interceptors=[by.RuntimeVersionHttpInterceptor(component_name=component), allowed],
        retry_invoker=policy or patient(30.0),
    )


def acquired(client: Any, kind: Any) -> tuple[int, str] | None:
    """Acquire a task, and return its run's id and its token, or None if no task is waiting."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return (int(got.task.run_id), got.token) if got.HasField("task") and got.token else None


def begun(client: Any) -> tuple[Any, Any]:
    """Begin the task of a client's token, and return its context and its node; the bundle is not read."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, context.node_id
    return context, Node(node_id=context.node_id)


def heartbeat(client: Any) -> Any:
    """Start to tell that this process works on its task. Failures show in the next call of the client, not here."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
    from flwr.supercore.heartbeat import HeartbeatSender

    def beat() -> bool:
        with suppress(Exception):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    return sender
