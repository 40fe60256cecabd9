"""Use Flower as a transport at a site: take messages from its SuperNode, and ask the server whether a run is active."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fl_lightning.compat.flower import acquired, begun, heartbeat, prepare_environment, runtime
from fl_lightning.compat.flower_messages import as_record, receive, send

_LATE = 0.05
"""The seconds between two questions for a message whose task has come first."""


@dataclass(frozen=True)
class Task:
    """Hold a message that a site must answer; see :meth:`SiteLink.task`."""

    parts: Mapping[str, bytes | bytearray]
    client: Any
    message: Any
    node: Any
    run_id: int

    def reply(self, content: bytes | bytearray) -> None:
        """Send the answer."""
        from flwr.app import Message

        record, pieces = as_record({"reply": content})
        send(self.client, Message(record, reply_to=self.message), pieces, self.node, self.run_id)


class SiteLink:
    """Take messages from this site's SuperNode, in place of ``flower-superexec`` and ``flwr-clientapp``.

    Args:
        address: the SuperNode's address on this machine.
        secret: the secret that allows a process to acquire tasks.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        prepare_environment()
        self._address = address
        self._client = runtime(address, None, "SuperExec", secret=secret)

    @contextmanager
    def task(self) -> Iterator[Task | None]:
        """Take the next message if there is one; it ends as completed, or as failed if the body raises an exception."""
        from flwr.supercore.constant import TaskType
        from flwr.supernode.runtime.run_clientapp import push_task_output

        got = acquired(self._client, TaskType.CLIENT_APP)
        if got is None:
            yield None
            return
        client = runtime(self._address, None, "flwr-clientapp", token=got[1])
        beating = heartbeat(client)
        status, context = "failed", None
        try:
            context, node = begun(client)
            message, parts = _message(client, node, context.run_id)
            yield Task(parts, client, message, node, context.run_id)
            status = "completed"
        finally:
            push_task_output(client, context, status, "")
            beating.stop()
            client.close()


def _message(client: Any, node: Any, run_id: int) -> tuple[Any, Mapping[str, bytes | bytearray]]:
    """Return the message of a task, which the SuperNode has a moment after the task, and the named bytes in it."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    while not (found := client.PullMessages(PullAppMessagesRequest())).messages_list:
        time.sleep(_LATE)
    tree = found.message_object_trees[0]
    message, parts = receive(client, tree, node, run_id, limit=None)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, parts


class RunWatch:
    """Ask the server whether a run is still active: a SuperNode does not ask while its worker is busy.

    Args:
        address: the server's public address, host and port.
        certificate: the CA's certificate, PEM; None for the system's.
        key: the site's private key, OpenSSH.
    """

    def __init__(self, address: str, certificate: bytes | None, key: bytes) -> None:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        private: Any = load_ssh_private_key(key, None)
        self._public = public_key_to_bytes(private.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        signed = NodeAuthHttpInterceptor(private, private.public_key())
        self._client = FleetHttpClient.from_server_address(address, False, certificate, interceptors=[version, signed])

    def registered(self) -> bool:
        """Return whether the server knows the key.

        It asks for an activation with an interval that no server accepts, so that nothing changes: a known key fails later than
        an unknown one.

        Raises:
            OSError: if the server does not answer.
        """
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.error import ApiErrorCode, FlowerError

        try:
            self._client.ActivateNode(ActivateNodeRequest(public_key=self._public, heartbeat_interval=-1.0))
        except httpx.HTTPStatusError as error:
            told = FlowerError.from_json(error.response.text)
            return told is not None and told.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return True

    def ended(self, task: Task) -> bool:
        """Return whether the server says that the run of a task has ended; a server that does not answer says nothing."""
        import httpx
        from flwr.proto.run_pb2 import GetRunRequest
        from flwr.supercore.error import FlowerError

        try:
            self._client.GetRun(GetRunRequest(node=task.node, run_id=task.run_id))
        except httpx.HTTPStatusError as error:
            return error.response.status_code == 403 and FlowerError.from_json(error.response.text) is not None
        except httpx.HTTPError:
            return False
        return False
