"""Speak with Flower's Runtime API, which server and sites share: acquire a task, and tell that it is worked on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fl_lightning.compat.flower_memory import free_what_is_done

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


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


def runtime(address: str, certificate: bytes | None, secret: bytes, component: str, token: str = "") -> Any:
    """Return a client of a Runtime API, without TLS if there is no certificate, which only loopback allows."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    free_what_is_done()
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name=component)]
    interceptors.append(RuntimeTokenHttpInterceptor(token) if token else signed)
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificate is None,
        root_certificates=certificate,
        interceptors=interceptors,
        retry_invoker=patient(30.0),
    )


def acquired(client: Any, kind: Any) -> tuple[int, str] | None:
    """Acquire a task, and return its run's id and its token, or None if no task is waiting."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return (int(got.task.run_id), got.token) if got.HasField("task") and got.token else None


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
