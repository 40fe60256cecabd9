"""Use Flower as a transport at a site: take messages from its SuperNode, and ask the server whether a run is active."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fl_lightning.compat.flower_control import prepare_environment
from fl_lightning.compat.flower_objects import receive, send
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import acquired, heartbeat, runtime


@dataclass(frozen=True)
class Task:
    """Hold a message that a site must answer; see :meth:`SiteLink.tasks`."""

    parts: Mapping[str, bytes | bytearray]
    client: Any
    message: Any
    context: Any

    def reply(self, content: bytes | bytearray) -> None:
        """Send the answer."""
        from flwr.app import Message

        message = Message(as_record({"reply": content}), reply_to=self.message)
        send(self.client, message, _node(self.context), self.context.run_id)


class SiteLink:
    """Take messages from this site's SuperNode, in place of ``flower-superexec`` and ``flwr-clientapp``.

    Args:
        address: the SuperNode's address on this machine.
        secret: the secret that allows a process to acquire tasks.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        prepare_environment()
        self._address, self._secret = address, secret
        self._client = runtime(address, None, secret, "SuperExec")

    @contextmanager
    def task(self) -> Iterator[Task | None]:
        """Take the next message if there is one; it ends as completed, or as failed if the body raises an exception."""
        from flwr.supercore.constant import TaskType
        from flwr.supernode.runtime.run_clientapp import push_task_output

        got = acquired(self._client, TaskType.CLIENT_APP)
        if got is None:
            yield None
            return
        client = runtime(self._address, None, self._secret, "flwr-clientapp", got[1])
        beating = heartbeat(client)
        status, context = "failed", None
        try:
            message, context = _task_input(client)
            parts = as_parts(message.content)
            message.content.clear()  # who answers frees the parts
            yield Task(parts, client, message, context)
            status = "completed"
        finally:
            push_task_output(client, context, status, "")
            beating.stop()
            client.close()

    @staticmethod
    def is_gone(error: Exception) -> bool:
        """Return whether an error says that the SuperNode does not run."""
        import httpx

        return isinstance(error, httpx.TransportError)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _node(context: Any) -> Any:
    from flwr.proto.node_pb2 import Node as NodeProto

    return NodeProto(node_id=context.node_id)


def _task_input(client: Any) -> tuple[Any, Any]:
    """Return the message and the context of a task, in place of ``pull_task_input``; the bundle is not read."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, context.node_id
    found = client.PullMessages(PullAppMessagesRequest())
    if not found.messages_list:
        raise RuntimeError("The SuperNode has no message for its task.")
    tree = found.message_object_trees[0]
    message = receive(client, tree, _node(context), context.run_id, limit=None)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


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
        from flwr.proto.node_pb2 import Node as NodeProto
        from flwr.proto.run_pb2 import GetRunRequest
        from flwr.supercore.error import FlowerError

        node = NodeProto(node_id=task.context.node_id)
        try:
            self._client.GetRun(GetRunRequest(node=node, run_id=task.context.run_id))
        except httpx.HTTPStatusError as error:
            return error.response.status_code == 403 and FlowerError.from_json(error.response.text) is not None
        except httpx.HTTPError:
            return False
        return False
