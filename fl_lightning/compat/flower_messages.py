"""Send and receive named bytes as Flower's messages, a piece at a time, in place of Flower's own functions.

Flower makes a tree of five or more objects of a message, keeps all pieces that it sends, and joins thrice what it receives.
Each object takes requests of server and site to the SuperLink, which are most of a round's time if the model is small. Here, a
message is one object, and its children are the pieces of its large contents. Upstream: flower#2515.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import islice
from operator import add
from threading import Event
from typing import Any, TypeAlias

Content: TypeAlias = bytes | bytearray
Makers: TypeAlias = dict[str, Callable[[], bytes]]
"""What makes objects, by their ids: the SHA-256 of each."""

_SMALL = 1 << 20
"""The largest content, in bytes, that is a part of the message itself."""
_PIECE = 5 * 2**20
"""The bytes of a piece, as in Flower."""
_NUMBER = 8
"""The bytes before a piece that say where it begins."""
_AT_ONCE = 2
"""The pieces that are under way at a time, of which a receiver holds one more."""
WAIT: dict[str, Any] = {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_tries_per_object": None}
"""How to wait for a piece that has not arrived. A SuperNode gets an order as soon as the SuperLink knows of it, and its worker
as soon as the SuperNode does, so both wait in many exchanges, with Flower's settings for a second or more."""
_LIMIT = 7200.0
"""The seconds for which Flower waits for a piece. A server asks for what has arrived; a worker waits as long as it takes."""


def pieces_of(content: Content) -> list[tuple[str, Any]]:
    """Return the pieces of a content in order: the id of each, and what makes it. Each says where it begins: none are equal."""
    found, view = [], memoryview(content)
    for start in range(0, len(view), _PIECE):
        part = view[start : start + _PIECE]
        head = _head("ArrayChunk", {}, _NUMBER + len(part)) + start.to_bytes(_NUMBER, "big")
        digest = sha256(head)
        digest.update(part)
        found.append((digest.hexdigest(), partial(add, head, part)))
    return found


def as_record(parts: Mapping[str, Content], cut: Callable[[Content], Any] = pieces_of) -> tuple[Any, Makers]:
    """Return named bytes as a record of Flower, and the pieces of the large ones, which the SuperLink gets once for all sites.

    Args:
        parts: the bytes by name.
        cut: makes the pieces of a large content.
    """
    from flwr.app import ConfigRecord, RecordDict

    record, pieces = RecordDict(), Makers()
    for name, content in parts.items():
        if len(content) <= _SMALL:
            record[name] = ConfigRecord({"bytes": bytes(content)})
        else:
            found = cut(content)
            record[name] = ConfigRecord({"pieces": [piece for piece, _ in found]})
            pieces |= found
    return record, pieces


def as_tree(message: Any, pieces: Makers) -> tuple[Any, Makers]:
    """Return a message's tree of objects, and what makes them, children first; the message then knows its id."""
    from flwr.common.serde import message_to_proto
    from flwr.proto.message_pb2 import ObjectTree

    body = message_to_proto(message).SerializeToString(deterministic=True)
    content = _head("Message", pieces, len(body)) + body
    name = sha256(content).hexdigest()
    message.metadata.__dict__["_message_id"] = name
    return ObjectTree(object_id=name, children=[ObjectTree(object_id=one) for one in pieces]), {**pieces, name: lambda: content}


def send(client: Any, message: Any, pieces: Makers, node: Any, run_id: int) -> str | None:
    """Send a message, and return its id; None if it is refused.

    Args:
        client: the client of a Runtime API.
        message: the message.
        pieces: the pieces of its contents.
        node: who sends it.
        run_id: the run.
    """
    from flwr.app.message.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf

    tree, objects = as_tree(message, pieces)
    bare = message_to_proto(remove_content_from_message(message))
    told = client.PushMessages(PushAppMessagesRequest(messages_list=[bare], message_object_trees=[tree]))
    push = make_push_object_fn_protobuf(client.PushObject, node, run_id, told.session_id)
    wanted = set(told.objects_to_push)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda name: push(name, objects[name]()), [name for name in objects if name in wanted]))
    return next(iter(told.message_ids), None) or None


def receive(client: Any, tree: Any, node: Any, run_id: int, limit: float | None = _LIMIT) -> tuple[Any, dict[str, Content]]:
    """Receive the message that a tree of objects describes, and the named bytes in it; none in an error.

    Args:
        client: the client of a Runtime API.
        tree: the tree.
        node: who receives it.
        run_id: the run.
        limit: the seconds for which an object that has not arrived is waited for; None for no limit.

    Raises:
        ObjectPullError: if an object is missing.
        ValueError: if it holds anything other than named bytes.
    """
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects

    ask, failed = make_pull_object_fn_protobuf(client.PullObject, node, run_id), Event()

    def one(name: str) -> bytes:
        if failed.is_set():  # nobody waits for it any more
            raise ObjectPullError(name, "another object failed")
        return bytes(ask(name))

    def pull(name: str) -> bytes:
        try:
            return bytes(dict(pull_objects([name], one, max_time=limit, **WAIT))[name])
        except BaseException:
            failed.set()
            raise

    try:
        message = message_from_proto(Message.FromString(pull(tree.object_id).partition(b"\0")[2]))
        records = {} if message.has_error() else message.content
        children = {child.object_id for child in tree.children}
        return message, {str(name): _content(record, children, pull) for name, record in records.items()}
    finally:
        if not failed.is_set():
            done = ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=tree.object_id)
            client.ConfirmMessageReceived(done)


def _head(kind: str, children: Mapping[str, Any], size: int) -> bytes:
    """Return the beginning of an object of Flower: its type, its children, and the bytes that follow."""
    return f"{kind} {','.join(children)} {size}\0".encode()


def _content(record: Any, children: set[str], pull: Callable[[str], bytes]) -> Content:
    found, names = record.get("bytes"), record.get("pieces")
    if isinstance(found, bytes):
        return found
    if isinstance(names, list) and children.issuperset(names) and len(set(names)) == len(names):  # a piece fills memory once
        return _joined(names, pull)
    raise ValueError("The message holds something other than named bytes.")


def _joined(names: list[str], pull: Callable[[str], bytes]) -> bytearray:
    """Return the contents of pieces as one, of which a few are in memory twice."""
    whole, rest = bytearray(), iter(names)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        coming = deque(threads.submit(pull, name) for name in islice(rest, _AT_ONCE))
        while coming:
            piece = coming.popleft().result()
            coming.extend(threads.submit(pull, following) for following in islice(rest, 1))
            whole += memoryview(piece)[piece.index(b"\0") + 1 + _NUMBER :]
    return whole
