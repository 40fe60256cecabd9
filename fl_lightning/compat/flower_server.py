"""Stand in for the command ``flwr`` and for Flower's ServerApp: register sites, start runs, send orders and take replies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fl_lightning.compat.flower import acquired, begun, heartbeat, patient, prepare_environment, runtime
from fl_lightning.compat.flower_delivery import BEATS, kind_of
from fl_lightning.compat.flower_messages import as_record, pieces_of, receive, send

LOST = 4
"""The code of a reply whose contents are missing."""
_PATIENCE = 60.0
"""The seconds for which a lost SuperLink is waited for."""
_FAREWELL = 1.5
"""The seconds for which the end of a run waits for the SuperLink, twice."""
_STUB = b"""[project]
name = "fl-lightning"
version = "0.1.0"
description = "A stub: server and sites run the fl_lightning that they have installed."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fllightning"
[tool.flwr.app.components]
serverapp = "fl_lightning.flower:none"
clientapp = "fl_lightning.flower:none"
[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Node:
    """Describe a registered site.

    Attributes:
        node_id: Flower's id, which survives restarts.
        name: the registered name.
        online: whether its SuperNode is connected.
        heard: when it gave its last sign of life, in seconds since the epoch.
    """

    node_id: int
    name: str
    online: bool
    heard: float = 0.0


class ControlLink:
    """Register and list sites, in place of the command ``flwr supernode``. Only processes on the server's host may do so.

    Args:
        address: the SuperLink's local address, host and port.
        certificate: the CA's certificate, PEM.
        policy: the retry policy; None for none.
    """

    def __init__(self, address: str, certificate: bytes, policy: Any = None) -> None:
        prepare_environment()
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self.client = ControlHttpClient.from_server_address(address, False, certificate, [version], retry_invoker=policy)

    def register(self, public_key: bytes, name: str) -> int:
        """Register a site by its public key in OpenSSH's format, and return its node id."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return int(self.client.RegisterNode(RegisterNodeRequest(public_key=_flower_key(public_key), name=name)).node_id)

    def knows(self, public_key: bytes) -> bool:
        """Return whether a key in OpenSSH's format was ever registered, which makes Flower refuse it."""
        from flwr.proto.control_pb2 import ListNodesRequest

        key = _flower_key(public_key)
        return any(node.public_key == key for node in self.client.ListNodes(ListNodesRequest()).nodes_info)

    def unregister(self, node_id: int) -> None:
        """Revoke a site's registration."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self.client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> list[Node]:
        """Return all registered sites."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return [
            Node(node.node_id, node.name, node.status == "online", node.online_until - BEATS * node.heartbeat_interval)
            for node in self.client.ListNodes(ListNodesRequest()).nodes_info
            if node.status != "unregistered"
        ]

    def stop_runs(self) -> None:
        """Stop all runs that have not finished: a server that was killed leaves one."""
        from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest

        for run in self.client.ListRuns(ListRunsRequest()).run_dict.values():
            if run.status.status != "finished":
                with suppress(Exception):  # it may have ended in the meantime
                    self.client.StopRun(StopRunRequest(run_id=run.run_id))

    def start_run(self) -> int:
        """Start a run of a bundle without code, in place of ``flwr run``, and return its id."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_files({"pyproject.toml": _STUB})[0]
        fab = fab_to_proto(Fab(sha256(content).hexdigest(), content, {}))
        return int(self.client.StartRun(StartRunRequest(fab=fab)).run_id)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _flower_key(public_key: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(public_key)
    return bytes(public_key_to_bytes(key))


@dataclass(frozen=True)
class Reply:
    """Hold a site's reply.

    Attributes:
        order: the id that :meth:`ServerLink.push` returned.
        content: the bytes; None after an error of the transport.
        error: the error's code, or 0.
    """

    order: str
    content: bytes | bytearray | None
    error: int = 0


class ServerLink:
    """Be the ServerApp of a run in this process, in place of ``flwr-serverapp``.

    Args:
        address: the SuperLink's local address, host and port.
        certificate: the CA's certificate, PEM.
        secret: the secret that allows a process to acquire the server's task.
    """

    _newest: tuple[bytes | bytearray, Any] | None = None  # the last large content with its pieces

    def __init__(self, address: str, certificate: bytes, secret: bytes) -> None:
        from flwr.supercore.constant import TaskType

        self._control = ControlLink(address, certificate, patient(_PATIENCE))
        self.nodes = self._control.nodes
        self._control.stop_runs()
        self.run_id, got = self._control.start_run(), None
        acquiring = runtime(address, certificate, "SuperExec", secret=secret)
        while got is None or got[0] != self.run_id:  # a run that was stopped may have a task left
            got = acquired(acquiring, TaskType.SERVER_APP)
            if got is None:
                raise RuntimeError("The SuperLink has no task for the server. Another process has taken it; start again.")
        acquiring.close()
        self._recovered = False
        policy = patient(_PATIENCE, self._note)
        self._client = runtime(address, certificate, "flwr-serverapp", token=got[1], policy=policy)
        self._heartbeat = heartbeat(self._client)
        self._node = begun(self._client)[1]

    def _note(self, state: Any) -> None:
        if state.tries > 1:
            self._recovered = True

    def recovered(self) -> bool:
        """Return whether the SuperLink was lost and found again since the last call of this method.

        It delivers each message at most once: one that was on its way to or from it when it died is lost without an error.
        """
        found, self._recovered = self._recovered, False
        return found

    def push(self, node_id: int, parts: Mapping[str, bytes | bytearray], seconds: float, patience: float) -> str | None:
        """Send named bytes to a site, and return the id of the order; None if the SuperLink refuses it.

        Args:
            node_id: the site.
            parts: the bytes by name.
            seconds: the seconds for which the order is good.
            patience: the seconds without a sign of life from the site after which the order has failed.
        """
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        def pushed() -> str | None:
            record, pieces = as_record(parts, self._cut)
            message = Message(record, dst_node_id=node_id, message_type=kind_of(patience), ttl=seconds)
            return send(self._client, message, pieces, self._node, self.run_id)

        try:
            return pushed()
        except ObjectPushError:  # the SuperLink died between the message and its contents
            return pushed()

    def _cut(self, content: bytes | bytearray) -> Any:
        """Return the pieces of a large content, whose digests are computed once for all sites that get it."""
        if self._newest is None or self._newest[0] is not content:
            self._newest = content, pieces_of(content)
        return self._newest[1]

    def pull(self, orders: Collection[str]) -> Iterator[Reply]:
        """Yield the replies that have arrived; each is fetched when it is asked for."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        self._newest = None  # it holds a model
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=list(orders)))
        for about, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            yield self._received(about.metadata.reply_to_message_id, tree)  # not kept here: it may hold a model

    def _received(self, order: str, tree: Any) -> Reply:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
        from google.protobuf.message import DecodeError

        try:
            message, parts = receive(self._client, tree, self._node, self.run_id)
            return Reply(order, None, message.error.code) if message.has_error() else Reply(order, parts["reply"])
        except ObjectPullError:
            return Reply(order, None, LOST)
        except (ValueError, TypeError, LookupError, AttributeError, DecodeError):  # the site's; the link's are those of httpx
            return Reply(order, b"")

    def close(self, completed: bool) -> None:
        """End the run, so that sites stop working on it."""
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        for client in (self._client, self._control.client):  # the SuperLink may be gone
            client._client.timeout, client._retry_invoker = _FAREWELL, None
        with suppress(Exception):
            status = "completed" if completed else "stopped"
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        with suppress(Exception):
            self._control.stop_runs()
        self._heartbeat._stop_event.set()  # without waiting for a heartbeat under way
        self._client.close()
        self._control.close()
