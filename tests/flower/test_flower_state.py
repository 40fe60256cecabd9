"""What stands in for Flower's own code, on Flower's own state. Run with ``-m flower``."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import TESTED, Reply, ServerLink, installed_version
from fl_lightning.compat.flower_contents import LARGE, getting, putting
from fl_lightning.compat.flower_objects import array_of, receive, send
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import patient
from fl_lightning.compat.flower_superlink import _require_known
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.processes import length

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() not in TESTED, reason="needs flwr of a tested minor version"),
]


@pytest.mark.parametrize("revision", ["heads", "of a later version", None])
def test_a_database_that_a_newer_flower_has_used_is_refused(revision, tmp_path):
    from alembic.script import ScriptDirectory
    from flwr.supercore.state.alembic.utils import ALEMBIC_DIR

    heads = ScriptDirectory(str(ALEMBIC_DIR)).get_heads()
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as database, database:
        if revision is not None:
            database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
            found = heads if revision == "heads" else [revision]
            database.executemany("INSERT INTO alembic_version VALUES (?)", [(one,) for one in found])
    if revision != "of a later version":
        _require_known(path)
        return
    with pytest.raises(
        ConfigurationError, match=r"state.db' was used by a newer version of Flower than 1\.4\d, .*Install the newer"
    ):
        _require_known(path)


def be_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the one that has the server's task."""
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in (("task_id", 5), ("run_id", 7), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 11_000_000])
def test_a_message_with_small_contents_is_one_object(size, monkeypatch):
    """A large content goes in pieces of 5 MB, beside its array, its record, and the message, its record and the other one."""
    from flwr.app import Message
    from flwr.proto.node_pb2 import Node

    be_a_fit(monkeypatch)
    parts, store = {"order": b"content", "model": bytes(k % 251 for k in range(size))}, Runtime()
    send(store, Message(as_record(parts), dst_node_id=3, message_type="train"), Node(node_id=1), 7)
    assert len(store.objects) == (1 if size <= 1 << 20 else 3 + 2 + -(-size // 5_242_880))
    got = receive(store, store.tree, Node(node_id=1), 7)
    assert as_parts(got.content) == parts
    assert got.metadata.dst_node_id == 3
    assert store.confirmed == [store.tree.object_id]


class Runtime:
    """The Runtime API of a SuperLink, which keeps objects."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.tree: Any = None
        self.replies: list[tuple[Any, Any]] = []

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        messages, trees = zip(*self.replies, strict=True)
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        from flwr.proto.runtime_pb2 import PushAppMessagesResponse
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        (self.tree,) = request.message_object_trees
        missing = [node.object_id for node in iterate_object_tree(self.tree)]
        return PushAppMessagesResponse(message_ids=["m"], objects_to_push=missing, session_id="s")

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        from flwr.proto.message_pb2 import PushObjectResponse

        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        from flwr.proto.message_pb2 import PullObjectResponse

        found = self.objects.get(request.object_id)
        return PullObjectResponse(object_found=found is not None, object_available=True, object_content=found or b"")

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


def linked(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[ServerLink, Any]:
    """Return a server's connection to a Runtime API."""
    from flwr.proto.node_pb2 import Node

    be_a_fit(monkeypatch)
    link = object.__new__(ServerLink)
    link._grid, link.run_id = SimpleNamespace(_runtime_client=runtime, node=Node(node_id=1)), 7
    return link, runtime


def reply(store: Runtime, order: str, content: Any) -> None:
    """Let a site have replied to an order."""
    from flwr.app import Message, RecordDict
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

    message = Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
    vars(message.metadata).update(_message_id=message.object_id, _reply_to_message_id=order)
    store.objects |= {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    about = message_to_proto(Message(RecordDict(), dst_node_id=1, message_type="train"))
    about.metadata.reply_to_message_id = order
    store.replies.append((about, get_object_tree(message)))


@pytest.mark.parametrize("model", [b"", b"small", bytes(11_000_000), bytes(range(250)) * 50_000])
def test_pieces_are_those_that_flower_makes_and_reads(model, monkeypatch):
    """Sent by us and read by Flower; sent by Flower and read by us. Of zeros, two pieces are equal."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_body, get_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    be_a_fit(monkeypatch)
    parts = {"order": b"content", "model": model}
    ours = Runtime()
    assert send(ours, Message(as_record(parts), dst_node_id=3, message_type="train"), Node(node_id=1), 7) == "m"
    read: Any
    if len(model) > 1 << 20:
        read = inflate_object_from_contents(ours.tree.object_id, dict(ours.objects))
    else:  # one object, in the protocol's form
        (content,) = ours.objects.values()
        read = message_from_proto(ProtoMessage.FromString(get_object_body(content, Message)))
    assert as_parts(read.content) == parts

    large = ArrayRecord({"bytes": Array("uint8", (len(model),), "bytes", model)})
    small = ConfigRecord({"bytes": model})
    record = RecordDict({"order": ConfigRecord({"bytes": b"content"}), "model": large if len(model) > 1 << 20 else small})
    message = Message(record, dst_node_id=3, message_type="train")
    theirs = Runtime()
    theirs.objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    received = receive(theirs, get_object_tree(message), Node(node_id=1), 7)
    assert as_parts(received.content) == parts
    assert theirs.confirmed == [message.object_id]
    assert received.metadata.message_type == "train"


def test_a_message_with_a_missing_piece_is_not_confirmed(monkeypatch):
    from flwr.app import Message
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    be_a_fit(monkeypatch)
    store = Runtime()
    send(store, Message(as_record({"order": bytes(6_000_000)}), dst_node_id=3, message_type="train"), Node(node_id=1), 7)
    del store.objects[max(store.objects, key=lambda name: len(store.objects[name]))]
    with pytest.raises(ObjectPullError):
        receive(store, store.tree, Node(node_id=1), 7)
    assert not store.confirmed


@pytest.mark.parametrize("limit", [0.0, None])
def test_a_worker_waits_for_a_piece_as_long_as_it_takes(limit, monkeypatch):
    """Where others give up, here at once, it has the message when a later request finds it."""
    from flwr.app import Message
    from flwr.proto.message_pb2 import PullObjectResponse
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    class Late(Runtime):
        asked = 0

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            self.asked += 1
            return super().PullObject(request) if self.asked > 2 else PullObjectResponse(object_found=True)

    be_a_fit(monkeypatch)
    store = Late()
    send(store, Message(as_record({"order": b"content"}), dst_node_id=3, message_type="train"), Node(node_id=1), 7)
    if limit is None:
        assert as_parts(receive(store, store.tree, Node(node_id=1), 7, limit).content) == {"order": b"content"}
    else:
        with pytest.raises(ObjectPullError):
            receive(store, store.tree, Node(node_id=1), 7, limit)


@pytest.mark.parametrize("strange", ["text", "two arrays", "metrics"])
def test_other_records_are_refused(strange):
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    arrays = {name: Array("uint8", (1,), "bytes", b"1") for name in ("bytes", "more")}
    records = {"text": ConfigRecord({"bytes": "1"}), "two arrays": ArrayRecord(arrays), "metrics": MetricRecord({"bytes": 1})}
    with pytest.raises(ValueError, match="something other than named bytes"):
        as_parts(RecordDict({"order": records[strange]}))


@pytest.mark.parametrize("step", ["pull_object", "confirm_message_received"])
def test_a_message_of_a_run_that_ends_while_it_arrives_is_dropped(step, monkeypatch):
    """In Flower's own state: nothing is left that a worker would take, and then wait for its contents forever."""
    from flwr.app import Message, RecordDict
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
    from flwr.supernode.servicer.runtime.runtime_handlers import acquire_task
    from flwr.supernode.start_client_internal import _pull_and_store_message

    from fl_lightning.compat.flower_supernode import dropping_incomplete

    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(3)
    state.store_run(Run.create_empty(7))
    be_a_fit(monkeypatch)
    message = Message(RecordDict(), dst_node_id=3, message_type="train")
    vars(message.metadata)["_message_id"] = message.object_id
    objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    tree = get_object_tree(message)

    def ended(*_: object) -> bytes:
        raise RunNotRunningException

    calls = {"pull_object": lambda _, name: objects[name], "confirm_message_received": lambda *_: None, step: ended}
    got = dropping_incomplete(_pull_and_store_message)(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (message, tree),
        get_run=ended,
        get_fab=ended,
        trusted_entities=None,
        **calls,
    )
    assert got is None
    assert not acquire_task(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]), state).token
    assert len(store) == 0


def test_a_worker_hears_of_each_order_once(tmp_path, monkeypatch):
    """Not of its own replies; a file that cannot be written costs a pause, not the order."""
    from flwr.app import Message, RecordDict
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fl_lightning.compat.flower_supernode import tell_of_orders

    be_a_fit(monkeypatch)
    monkeypatch.setattr(InMemoryNodeState, "store_message", InMemoryNodeState.store_message)
    told = tmp_path / "orders"
    tell_of_orders(told)
    state = InMemoryNodeState(InMemoryObjectStore())

    def store(message: Message) -> None:
        vars(message.metadata)["_message_id"] = message.object_id
        assert state.store_message(message) == message.object_id

    first, second, third = (Message(RecordDict(), dst_node_id=3, message_type=f"train.{name}") for name in "abc")
    store(first)
    assert length(told) == 1
    store(second)
    assert length(told) == 2
    store(Message(RecordDict(), reply_to=second))
    assert length(told) == 2
    told.unlink()
    told.mkdir()
    store(third)


@pytest.mark.parametrize("taken", [True, False], ids=["with the message", "before it took the message"])
def test_a_message_is_answered_if_its_worker_dies(taken, monkeypatch):
    """Also if it dies after it took the task: Flower alone would never answer. The next order stays for the next worker."""
    from datetime import timedelta

    from flwr.app import Message, RecordDict
    from flwr.supercore.constant import TaskType
    from flwr.supercore.date import now
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fl_lightning.compat.flower_supernode import answering_unread

    be_a_fit(monkeypatch)
    monkeypatch.setattr(
        InMemoryNodeState, "_on_task_tokens_expired", answering_unread(InMemoryNodeState._on_task_tokens_expired)
    )
    state = InMemoryNodeState(InMemoryObjectStore())
    state.set_node_id(3)
    orders = []
    for kind in ("train", "evaluate"):
        message = Message(RecordDict(), dst_node_id=3, message_type=kind)
        vars(message.metadata)["_message_id"] = message.object_id
        orders.append(state.store_message(message))
    task, later = (state.create_task(task_type=TaskType.CLIENT_APP, run_id=7) for _ in orders)
    assert state.claim_task(task)
    assert state.activate_task(task)
    if taken:
        state.get_messages_legacy(run_ids=[7], is_reply=False, limit=1)
        state.record_message_processing_start(orders[0])
    state.task_token_store[task].active_until = now() - timedelta(seconds=1)
    replies = state.get_messages_legacy(run_ids=[7], is_reply=True)
    assert [(one.metadata.reply_to_message_id, one.error.code) for one in replies] == [(orders[0], 8)]
    assert state.claim_task(later)
    left = state.get_messages_legacy(run_ids=[7], is_reply=False)
    assert [one.metadata.message_id for one in left] == orders[1:]


def test_an_order_whose_contents_were_lost_is_pushed_again(monkeypatch):
    """As when the SuperLink dies after the message and before its contents, which the next one then refuses."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

    class Dying(Runtime):
        trees: list[str] = []

        def PushObject(self, request: Any) -> Any:  # noqa: N802
            self.trees.append(self.tree.object_id)
            if len(self.trees) == 1:
                raise ObjectPushError("object", 7, "session")
            return super().PushObject(request)

    link, store = linked(Dying(), monkeypatch)
    assert link.push(3, {"order": b"content"}, "0", 60.0, 60.0) == "m"
    assert store.trees[0] != store.trees[-1] == store.tree.object_id
    assert as_parts(receive(store, store.tree, None, 7).content) == {"order": b"content"}


@pytest.mark.parametrize("strange", ["no reply", "no bytes"])
def test_a_reply_that_is_not_named_bytes_is_the_sites_own_error(strange, monkeypatch):
    """An exception here would look like a lost SuperLink, and end the run of all sites."""
    from flwr.app import ConfigRecord, RecordDict

    records = {"no reply": {"other": ConfigRecord({"bytes": b"content"})}, "no bytes": {"reply": ConfigRecord({"bytes": 1.0})}}
    link, store = linked(Runtime(), monkeypatch)
    reply(store, "strange", RecordDict(records[strange]))
    reply(store, "good", as_record({"reply": b"content"}))
    assert list(link.pull(["strange", "good"])) == [Reply("strange", b""), Reply("good", b"content")]


def test_an_error_that_flower_replies_is_told(monkeypatch):
    from flwr.app import Error

    link, store = linked(Runtime(), monkeypatch)
    reply(store, "failed", Error(code=2, reason="the worker died"))
    assert list(link.pull(["failed"])) == [Reply("failed", None, 2)]


@pytest.mark.parametrize(
    "content", [b"", b"junk", b"Message  3\x00\xff\xff\xff", b"Array  2\x00{}", b"Strange  1\x00a", b"RecordDict  2\x00[]"]
)
@pytest.mark.parametrize("children", [True, False])
def test_objects_that_are_no_message_are_the_sites_own_error(children, content, monkeypatch):
    link, store = linked(Runtime(), monkeypatch)
    reply(store, "strange", as_record({"reply": b"content"}))
    tree = store.replies[0][1]
    store.objects[tree.object_id] = content
    if not children:
        del tree.children[:]
    reply(store, "good", as_record({"reply": b"content"}))
    assert list(link.pull(["strange", "good"])) == [Reply("strange", b""), Reply("good", b"content")]


def test_a_model_is_cut_once_for_all_sites(monkeypatch):
    """Both get the same pieces; another model with the same bytes is cut again."""
    cut = []
    monkeypatch.setattr("fl_lightning.compat.flower.array_of", lambda content: cut.append(content) or array_of(content))
    link, store = linked(Runtime(), monkeypatch)
    model = bytearray(3_000_000)
    for site in (3, 4):
        link.push(site, {"order": bytes([site]), "model": model}, "0", 60.0, 60.0)
        assert as_parts(receive(store, store.tree, None, 7).content) == {"order": bytes([site]), "model": model}
    assert len(cut) == 1
    link.push(3, {"order": b"5", "model": bytearray(model)}, "1", 60.0, 60.0)
    assert len(cut) == 2


def test_replies_are_fetched_one_after_another_and_a_lost_one_costs_its_site(monkeypatch):
    """The second is not asked for before the first has been used: each may hold a model."""
    link, store = linked(Runtime(), monkeypatch)
    for number in range(3):
        reply(store, str(number), as_record({"reply": bytes([number]) * 3_000_000}))
    lost = max(store.objects, key=lambda name: store.objects[name].count(bytes([1])))
    del store.objects[lost]
    replies = link.pull(["0", "1", "2"])
    assert next(replies) == Reply("0", bytes(3_000_000))
    assert len(store.confirmed) == 1
    assert list(replies) == [Reply("1", None, 4), Reply("2", bytes([2]) * 3_000_000)]


def test_a_superlink_that_was_lost_and_found_is_noticed_once():
    from httpx import ConnectError

    link = object.__new__(ServerLink)
    link._recovered = False
    failures = [ConnectError("gone"), ConnectError("gone")]

    def call() -> str:
        if failures:
            raise failures.pop()
        return "answer"

    policy = patient(5.0, link._note)
    policy.wait_function = lambda seconds: None
    assert policy.invoke(call) == "answer"
    assert link.recovered()
    assert not link.recovered()
    assert policy.invoke(call) == "answer"
    assert not link.recovered()


@pytest.fixture
def store(tmp_path):
    """Return an object store, and a piece of a model with its id, which is registered."""
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_object import get_object_id
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore

    found = SqlObjectStore(str(tmp_path / "state.db"))
    found.initialize()
    content = ArrayChunk(memoryview(bytes(LARGE))).deflate()
    name = get_object_id(content)
    found.preregister(7, ObjectTree(object_id=name))
    (tmp_path / "contents").mkdir()
    kept = SimpleNamespace(
        put=putting(SqlObjectStore.put, tmp_path / "contents"), get=getting(SqlObjectStore.get, tmp_path / "contents")
    )
    return found, kept, content, name


def test_a_large_content_is_in_a_file(store, tmp_path):
    found, kept, content, name = store
    assert kept.get(found, name) == b""  # known, but not there
    kept.put(found, name, content)
    assert kept.get(found, name) == content
    assert (tmp_path / "contents" / name).read_bytes() == content
    assert len(found.get(name)) < 100
    kept.put(found, name, content)
    assert [file.name for file in (tmp_path / "contents").iterdir()] == [name]
    for spoil in (lambda file: file.write_bytes(content[:-1]), lambda file: file.unlink()):
        spoil(tmp_path / "contents" / name)
        assert kept.get(found, name) is None


def test_a_content_that_is_refused_leaves_no_file(store, tmp_path):
    from flwr.supercore.object_store import NoObjectInStoreError

    found, kept, content, name = store
    with pytest.raises(ValueError, match="does not match content hash"):
        kept.put(found, name, content + b"more")
    found.delete(name)
    with pytest.raises(NoObjectInStoreError):
        kept.put(found, name, content)
    assert not [*(tmp_path / "contents").iterdir()]
    assert kept.get(found, name) is None


def test_a_small_content_is_in_the_database(store, tmp_path):
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    found, kept, _, _ = store
    content = ArrayChunk(memoryview(b"few")).deflate()
    found.preregister(7, ObjectTree(object_id=get_object_id(content)))
    kept.put(found, get_object_id(content), content)
    assert kept.get(found, get_object_id(content)) == content
    assert not [*(tmp_path / "contents").iterdir()]
