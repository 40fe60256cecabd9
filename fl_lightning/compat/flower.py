"""Use Flower as a transport of bytes.

Everything private of flwr is in this module and its neighbours ``flower_*``, for the minor versions in ``pyproject.toml``.
Each function says what of Flower it stands in for. Messages are opaque bytes: no content is pickled, and the app bundle that
Flower requires of a run is a stub without code, which neither side unpacks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fl_lightning.compat.flower_delivery import BEATS, kind_of
from fl_lightning.compat.flower_objects import array_of, receive, send
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import acquired, heartbeat, patient, runtime

TESTED = ((1, 41), (1, 42))
"""The minor versions of flwr whose private names are used here, all of which speak the same protocol."""

FLEET = "/v1/fleet/"
"""The paths that sites use; nothing else of a SuperLink must be reachable from outside."""

ONLINE = "online"
LOST = 4
"""The code of a reply whose contents are missing."""
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


def prepare_environment() -> None:
    """Disable Flower's telemetry and update check, before flwr is imported, and any proxy for this machine's own addresses."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        given = [one for one in os.environ.get(name, "").split(",") if one]
        os.environ[name] = ",".join(dict.fromkeys([*given, "127.0.0.1", "localhost"]))


def installed_version() -> tuple[int, ...] | None:
    """Return the version of flwr, or None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return minor_version(version("flwr"))
    except PackageNotFoundError:
        return None


def minor_version(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; none if they are no numbers."""
    found = version.split(".")[:2]
    return tuple(map(int, found)) if all(map(str.isdecimal, found)) else ()


@dataclass(frozen=True)
class Node:
    """Describe a registered site.

    Attributes:
        node_id: Flower's id, which survives restarts.
        name: the registered name.
        online: whether its SuperNode is connected.
        key: the public key.
        heard: when it gave its last sign of life, in seconds since the epoch.
    """

    node_id: int
    name: str
    online: bool
    key: bytes
    heard: float = 0.0


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


class ControlLink:
    """Register and list sites, in place of the command ``flwr supernode``. Only processes on the server's host may do so.

    Args:
        address: the SuperLink's local address, host and port.
        certificate: the CA's certificate, PEM.
    """

    def __init__(self, address: str, certificate: bytes) -> None:
        prepare_environment()
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

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

        found = self.client.ListNodes(ListNodesRequest()).nodes_info
        return [_described(node) for node in found if node.status != "unregistered"]

    def stop_runs(self) -> None:
        """Stop all runs that have not finished: a server that was killed leaves one."""
        from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest

        for run in self.client.ListRuns(ListRunsRequest()).run_dict.values():
            if run.status.status != "finished":
                with suppress(Exception):  # it may have ended in the meantime
                    self.client.StopRun(StopRunRequest(run_id=run.run_id))

    def start_run(self) -> int:
        """Start a run of a bundle without code, in place of ``flwr run``, and return its id."""
        from hashlib import sha256

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


def _described(node: Any) -> Node:
    heard = node.online_until - BEATS * node.heartbeat_interval
    return Node(node.node_id, node.name, node.status == ONLINE, node.public_key, heard)


def _flower_key(public_key: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(public_key)
    found: bytes = public_key_to_bytes(key)
    return found


def _replied(record: Any) -> bytes | bytearray:
    """Return the bytes that a site replied; none from a record of another kind, which is the site's error, not the link's."""
    try:
        return as_parts(record)["reply"]
    except (KeyError, ValueError):
        return b""


class ServerLink:
    """Be the ServerApp of a run in this process, in place of ``flwr-serverapp``.

    Args:
        address: the SuperLink's local address, host and port.
        certificate: the CA's certificate, PEM.
        secret: the secret that allows a process to acquire the server's task.
        patience: the seconds for which a lost SuperLink is waited for.
    """

    _newest: tuple[bytes | bytearray, Any] | None = None  # the last large content with its array

    def __init__(self, address: str, certificate: bytes, secret: bytes, patience: float = 60.0) -> None:
        self.control = ControlLink(address, certificate)
        self.control.stop_runs()
        self.run_id = self.control.start_run()
        token = self._acquire(address, certificate, secret)
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        self._grid = HttpGrid(address, False, certificate, token=token)
        self._recovered = False
        self._grid._retry_invoker = patient(patience, self._note)
        self.control.client._retry_invoker = patient(patience)
        self._heartbeat = heartbeat(self._grid._runtime_client)
        given = self._grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, given.context.node_id
        self._grid.set_run(run_from_proto(given.run))

    def _acquire(self, address: str, certificate: bytes, secret: bytes) -> str:
        from flwr.supercore.constant import TaskType

        client = runtime(address, certificate, secret, "SuperExec")
        try:
            while True:
                got = acquired(client, TaskType.SERVER_APP)
                if got is None:
                    raise RuntimeError("The SuperLink has no task for the server. Another process has taken it; start again.")
                if got[0] == self.run_id:
                    return got[1]
        finally:
            client.close()

    def nodes(self) -> list[Node]:
        """Return the sites that are registered and not revoked."""
        return self.control.nodes()

    def _note(self, state: Any) -> None:
        if state.tries > 1:
            self._recovered = True

    def recovered(self) -> bool:
        """Return whether the SuperLink was lost and found again since the last call of this method.

        It delivers each message at most once: one that was on its way to or from it when it died is lost without an error.
        """
        found, self._recovered = self._recovered, False
        return found

    def push(
        self, node_id: int, parts: Mapping[str, bytes | bytearray], group: str, seconds: float, patience: float
    ) -> str | None:
        """Send named bytes to a site, and return the id of the order; None if the SuperLink refuses it.

        Args:
            node_id: the site.
            parts: the bytes by name.
            group: the round, for logs.
            seconds: the seconds for which the order is good.
            patience: the seconds without a sign of life from the site after which the order has failed.
        """
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        def pushed() -> str | None:
            message = Message(
                as_record(parts, self._array), dst_node_id=node_id, message_type=kind_of(patience), group_id=group, ttl=seconds
            )
            return send(self._grid._runtime_client, message, self._grid.node, self.run_id)

        try:
            return pushed()
        except ObjectPushError:  # the SuperLink died between the message and its contents
            return pushed()

    def _array(self, content: bytes | bytearray) -> Any:
        """Return the array of a large content, whose digests are computed once for all sites that get it."""
        if self._newest is None or self._newest[0] is not content:
            self._newest = content, array_of(content)
        return self._newest[1]

    def pull(self, orders: Collection[str]) -> Iterator[Reply]:
        """Yield the replies that have arrived; each is fetched when it is asked for."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
        from google.protobuf.message import DecodeError

        client = self._grid._runtime_client
        self._newest = None  # it holds a model
        found = client.PullMessages(PullAppMessagesRequest(message_ids=list(orders)))
        for about, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            order = about.metadata.reply_to_message_id
            try:
                message = receive(client, tree, self._grid.node, self.run_id)
            except ObjectPullError:
                yield Reply(order, None, LOST)
                continue
            except (
                ValueError,
                TypeError,
                LookupError,
                AttributeError,
                DecodeError,
            ):  # not of the link: httpx has its own errors
                yield Reply(order, b"")
                continue
            if message.has_error():
                yield Reply(order, None, message.error.code)
            else:
                yield Reply(order, _replied(message.content))
            del message  # it holds a model

    def close(self, completed: bool) -> None:
        """End the run, so that sites stop working on it."""
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        for client in (self._grid._runtime_client, self.control.client):  # the SuperLink may be gone
            client._client.timeout, client._retry_invoker = _FAREWELL, None
        with suppress(Exception):
            status = "completed" if completed else "stopped"
            self._grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        with suppress(Exception):
            self.control.stop_runs()
        self._heartbeat._stop_event.set()  # without waiting for a heartbeat under way
        self._grid.close()
        self.control.close()
