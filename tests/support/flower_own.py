"""Flower's own state and messages, and what stands in for its network: importable where flwr is installed."""

# ruff: noqa: F401 (tests use the names that are imported here)

import time
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.server.superlink.linkstate.sql_linkstate import NodeModel
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    validate_object_content,
)
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from sqlalchemy import update

from fl_lightning.compat.flower_delivery import keep_orders, kind_of
from fl_lightning.compat.flower_messages import as_record, as_tree, receive, send
from fl_lightning.compat.flower_server import ServerLink

LARGE = bytes(range(250)) * 50_000
"""A content of three pieces."""


def be_a_fit(monkeypatch: pytest.MonkeyPatch, run: int = 7) -> None:
    """Let this process be the one that has the server's task."""
    for name, value in (("task_id", 5), ("run_id", run), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)


def order(content: Any = None, kind: str = "train", to: int = 3) -> Message:
    """Return a message to a site."""
    return Message(RecordDict() if content is None else content, dst_node_id=to, message_type=kind)


def identified(message: Message) -> Message:
    """Return a message that knows its id, as one that has arrived."""
    vars(message.metadata)["_message_id"] = message.object_id
    return message


def objects_of(message: Message, pieces: Any = ()) -> tuple[Any, dict[str, bytes]]:
    """Return a message's tree of objects, and the objects, as they are sent; the message then knows its id."""
    tree, makers = as_tree(message, dict(pieces))
    return tree, {name: make() for name, make in makers.items()}


class Runtime:
    """The Runtime API of a SuperLink, which keeps objects."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.tree: Any = None
        self.replies: list[tuple[Any, Any]] = []

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        messages, trees = zip(*self.replies, strict=True)
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        (self.tree,) = request.message_object_trees
        missing = [node.object_id for node in iterate_object_tree(self.tree)]
        return PushAppMessagesResponse(message_ids=["m"], objects_to_push=missing, session_id="s")

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        found = self.objects.get(request.object_id)
        return PullObjectResponse(object_found=found is not None, object_available=True, object_content=found or b"")

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)

    def push(self, parts: dict[str, bytes]) -> str:
        """Send a site an order, as a fit does."""
        record, pieces = as_record(parts)
        return str(send(self, order(record), pieces, Node(node_id=1), 7))

    def pull(self, *more: Any) -> Any:
        """Receive what was pushed: the message, and the named bytes in it."""
        return receive(self, self.tree, Node(node_id=1), 7, *more)

    def link(self) -> ServerLink:
        """Return a server's connection to this API."""
        link = object.__new__(ServerLink)
        link._client, link._node, link.run_id = self, Node(node_id=1), 7
        return link

    def reply(self, to: str, content: Any, pieces: Any = ()) -> None:
        """Let a site have replied to an order: with named bytes, a record of Flower, or an error."""
        record, pieces = as_record(content) if type(content) is dict else (content, pieces)
        message = Message(record, reply_to=order(to=1))
        vars(message.metadata)["_reply_to_message_id"] = to
        tree, objects = objects_of(message, pieces)
        self.objects |= objects
        about = message_to_proto(order(to=1))
        about.metadata.reply_to_message_id = to
        self.replies.append((about, tree))


class Post:
    """A SuperLink's state with one site, and what the fit and the site's SuperNode do with it."""

    def __init__(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        keep_orders()
        self.state: Any = get_objectstore_linkstate_factories(database, get_federation_manager(is_simulation=False))[1].state()
        self.node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"key", 15)
        self.start()
        self.run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        be_a_fit(monkeypatch, self.run)

    def start(self) -> None:
        """Start the site's SuperNode."""
        assert self.state.activate_node(self.node, 15)

    def fall_silent(self, seconds: float) -> None:
        """Let the site's last sign of life be so long ago."""
        with self.state.session() as session:
            session.execute(update(NodeModel).values(online_until=time.time() - seconds + 30, status="offline"))

    def _send(self, message: Any, pieces: Any, sent: int | None) -> list[str]:
        """Store a message, and push so many of its objects, or all; return those that were missing."""
        session = self.state.start_session(self.run)
        tree, objects = objects_of(message, pieces)
        stored, missing = self.state.store_message_and_object_tree(remove_content_from_message(message), tree, session)
        assert stored
        for name, content in objects.items():
            if name in missing[:sent]:
                assert self.state.store_object(self.run, session, name, content)
        return list(missing)

    def order(self, patience: float = 90) -> str:
        """Send the site an order."""
        record, pieces = as_record({"order": b"train"})
        message = Message(record, dst_node_id=self.node, message_type=kind_of(patience), ttl=3600)
        vars(message.metadata).update(_run_id=self.run, _src_node_id=1)
        self._send(message, pieces, None)
        return str(message.metadata.message_id)

    def taken(self) -> list[Any]:
        """Return what the SuperNode gets."""
        return list(self.state.get_message_ins(node_id=self.node, limit=1))

    def reply(self, order: Any, sent: int | None = None, error: int = 0) -> list[str]:
        """Send the site's reply, or so many of its objects; return those that were missing."""
        record, pieces = (Error(error, ""), {}) if error else as_record({"reply": LARGE})
        message = Message(record, reply_to=order)
        vars(message.metadata)["_src_node_id"] = self.node
        return self._send(message, pieces, sent)

    def answers(self, *orders: str) -> list[Any]:
        """Return what the fit gets: an error's code, or None for a reply."""
        found = self.state.get_message_res(message_ids=set(orders), run_id=self.run)
        return [one.error.code if one.has_error() else None for one in found]
