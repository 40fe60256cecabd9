"""Use Flower as a transport of bytes.

Everything private of flwr is in this module and its neighbours ``flower_*``, for the minor versions in ``pyproject.toml``.
Each function says what of Flower it stands in for. Messages are opaque bytes: no content is pickled, and the app bundle that
Flower requires of a run is a stub without code, which neither side unpacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fl_lightning.compat.flower_control import ControlLink, Node
from fl_lightning.compat.flower_delivery import kind_of
from fl_lightning.compat.flower_objects import array_of, receive, send
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import acquired, heartbeat, patient, runtime

FLOWER = "1.42"
"""The minor version of flwr whose private names are used here, at the server and at all sites."""
VERSION = "x-fl-lightning"
"""The header with the server's version of fl_lightning."""

FLEET = "/v1/fleet/"
"""The paths that sites use; nothing else of a SuperLink must be reachable from outside."""

LOST = 4
"""The code of a reply whose contents are missing."""
_FAREWELL = 1.5
"""The seconds for which the end of a run waits for the SuperLink, twice."""


def installed_version() -> str | None:
    """Return the minor version of flwr, such as 1.42, or None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return ".".join(version("flwr").split(".")[:2])
    except PackageNotFoundError:
        return None


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
            except (ValueError, TypeError, LookupError, AttributeError, DecodeError):  # the link's errors are those of httpx
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
