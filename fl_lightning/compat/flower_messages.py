"""Put named bytes into Flower's messages, and send and receive them a piece at a time, in place of Flower's own functions.

Flower makes a tree of objects of a message: a large content is an ``Array`` with a piece of 5 MB in each of its children. Its
functions keep all pieces that they send, and join what they receive three times. Upstream: flower#2515. A message without an
array is a single object here, which Flower's message in its protocol's form fills: each object takes requests of server and
site to the SuperLink, which are most of a round's time if the model is small.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event
from typing import Any

_SMALL = 1 << 20
"""The largest content, in bytes, that travels whole."""
_AT_ONCE = 2
"""The pieces that are under way at a time, of which a receiver holds one more."""
WAIT: dict[str, Any] = {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_tries_per_object": None}
"""How to wait for a piece that has not arrived. A SuperNode gets an order as soon as the SuperLink knows of it, and its worker
as soon as the SuperNode does, so both wait in many exchanges, with Flower's settings for a second or more."""
_LIMIT = 7200.0
"""The seconds for which Flower waits for a piece. A server asks for what has arrived; a worker waits as long as it takes."""


@functools.cache
def _chunk() -> type[Any]:
    from flwr.app.message.arraychunk import ArrayChunk

    class Chunk(ArrayChunk):  # type: ignore[misc]
        """Be a piece whose content does not change, so that its digest is computed once."""

        is_dirty = False

    Chunk.__qualname__ = ArrayChunk.__qualname__  # stands in what is sent
    return Chunk


def array_of(content: bytes | bytearray) -> Any:
    """Return bytes as an array of Flower that refers to them."""
    from flwr.app import Array
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    array, view = Array("uint8", (len(content),), "bytes", b""), memoryview(content)
    starts = range(0, len(view), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)
    pieces = [_chunk()(view[start : start + FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE]) for start in starts]
    array.__dict__["_chunks"] = [(piece.object_id, piece) for piece in pieces]
    return array


def as_record(parts: Mapping[str, bytes | bytearray], array: Callable[[bytes | bytearray], Any] = array_of) -> Any:
    """Return named bytes as a record of Flower, one within it for each.

    A large content is an array, which Flower cuts into pieces of 5 MB; the SuperLink gets equal pieces once. A small one needs
    no object of its own: see :func:`send`.

    Args:
        parts: the bytes by name.
        array: makes the array of a large content.
    """
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    def record(content: bytes | bytearray) -> Any:
        if len(content) <= _SMALL:
            return ConfigRecord({"bytes": bytes(content)})
        found = ArrayRecord()
        found["bytes"] = array(content)  # the constructor would copy it
        return found

    return RecordDict({name: record(content) for name, content in parts.items()})


def as_parts(record: Any) -> dict[str, bytes | bytearray]:
    """Return the named bytes of such a record.

    Raises:
        ValueError: if it holds anything else.
    """
    from flwr.app import ArrayRecord, ConfigRecord

    def content(one: Any) -> bytes | bytearray:
        found = None
        if isinstance(one, ArrayRecord) and list(one) == ["bytes"]:
            found = one["bytes"].data
        elif isinstance(one, ConfigRecord):
            found = one.get("bytes")
        if isinstance(found, bytes | bytearray):
            return found
        raise ValueError("The message holds something other than named bytes.")

    return {str(name): content(one) for name, one in record.items()}


def send(client: Any, message: Any, node: Any, run_id: int) -> str | None:
    """Send a message, and return its id; None if it is refused.

    Args:
        client: the client of a Runtime API.
        message: the message.
        node: who sends it.
        run_id: the run.
    """
    from flwr.app.message.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf

    with no_object_id_recompute():
        tree, objects = _nested(message) if message.content.array_records else _whole(message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        bare = message_to_proto(remove_content_from_message(message))
        told = client.PushMessages(PushAppMessagesRequest(messages_list=[bare], message_object_trees=[tree]))
        push = make_push_object_fn_protobuf(client.PushObject, node, run_id, told.session_id)
        wanted = set(told.objects_to_push)
        with ThreadPoolExecutor(_AT_ONCE) as threads:  # children first
            list(threads.map(lambda name: push(name, objects[name]()), [name for name in objects if name in wanted]))
    return next(iter(told.message_ids), None) or None


def _nested(message: Any) -> tuple[Any, dict[str, Callable[[], bytes]]]:
    """Return a message's tree as Flower makes it, and what makes each object."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

    return get_object_tree(message), {name: one.deflate for name, one in get_all_nested_objects(message).items()}


def _whole(message: Any) -> tuple[Any, dict[str, Callable[[], bytes]]]:
    """Return the tree of a message as one object, and what makes the object."""
    from flwr.common.serde import message_to_proto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    body = message_to_proto(message).SerializeToString(deterministic=True)
    content = HEAD_VALUE_DIVIDER.join(("Message", "", str(len(body)))).encode() + HEAD_BODY_DIVIDER + body
    name = get_object_id(content)
    return ObjectTree(object_id=name), {name: lambda: content}


def receive(client: Any, tree: Any, node: Any, run_id: int, limit: float | None = _LIMIT) -> Any:
    """Receive the message that a tree of objects describes; its arrays are each one ``bytearray``.

    Args:
        client: the client of a Runtime API.
        tree: the tree.
        node: who receives it.
        run_id: the run.
        limit: the seconds for which an object that has not arrived is waited for; None for no limit.

    Raises:
        ObjectPullError: if an object is missing.
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

    def pull(names: list[str]) -> dict[str, bytes]:
        try:
            return dict(pull_objects(names, one, max_concurrent_pulls=_AT_ONCE, max_time=limit, **WAIT))
        except BaseException:
            failed.set()
            raise

    def confirm() -> None:
        client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=tree.object_id))

    if tree.children:
        return _read(tree, pull, confirm)
    content = pull([tree.object_id])[tree.object_id]
    confirm()
    return message_from_proto(Message.FromString(_body(content)))  # an error of Flower has this form too


def _read(tree: Any, pull: Callable[[list[str]], dict[str, bytes]], confirm: Callable[[], None]) -> Any:
    """Return the message of a tree as Flower makes it."""
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable import inflatable_object as flower
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    nodes = {part.object_id: part for part in flower.iterate_object_tree(tree)}
    contents = pull([name for name, part in nodes.items() if part.children])
    kinds = {name: flower.get_object_type_from_object_content(content) for name, content in contents.items()}
    joined = {name: _joined(_pieces(contents[name]), pull) for name, kind in kinds.items() if kind == "Array"}
    pieces = {child.object_id for name in joined for child in nodes[name].children}
    records = [json.loads(_body(contents[name])) for name, kind in kinds.items() if kind == "RecordDict"]
    arrays = {name: json.loads(_body(contents[name])) for name, kind in kinds.items() if kind == "ArrayRecord"}
    contents |= pull([name for name, part in nodes.items() if not part.children and name not in pieces])
    confirm()
    contents |= dict.fromkeys(pieces, ArrayChunk(memoryview(b"")).deflate())  # Flower checks that they are there
    message: Any = inflate_object_from_contents(tree.object_id, contents)
    for record in records:
        for name, kept in record.items():
            for key, array in arrays.get(kept, {}).items():
                if array in joined:
                    message.content[name][key].data = joined[array]
    return message


def _pieces(content: bytes) -> list[str]:
    """Return the ids of an array's pieces, in order, of which some may be equal."""
    from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content

    children = get_object_children_ids_from_object_content(content)
    return [children[number] for number in json.loads(_body(content))["arraychunk_ids"]]


def _joined(names: list[str], pull: Callable[[list[str]], dict[str, bytes]]) -> bytearray:
    """Return the contents of pieces as one, of which a few are in memory twice."""
    whole, rest = bytearray(), iter(names)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        coming = deque(threads.submit(pull, [name]) for name in islice(rest, _AT_ONCE))
        for name in names:
            piece = coming.popleft().result()[name]
            coming.extend(threads.submit(pull, [following]) for following in islice(rest, 1))
            whole += memoryview(piece)[_start_of_body(piece) :]
    return whole


def _body(content: bytes) -> bytes:
    """Return what an object holds, without its header."""
    return content[_start_of_body(content) :]


def _start_of_body(content: bytes) -> int:
    from flwr.supercore.constant import HEAD_BODY_DIVIDER

    return content.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER)
