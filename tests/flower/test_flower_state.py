"""What stands in for Flower's own code, on Flower's own state. Run with ``-m flower``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import TESTED, Reply, ServerLink, installed_version
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import patient

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() != TESTED, reason="needs flwr of the tested minor version"),
]


def be_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the one that has the server's task."""
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in (("task_id", 5), ("run_id", 7), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 11_000_000])
def test_a_content_comes_back_from_a_message_as_flower_sends_it(size, monkeypatch):
    """Small contents are one object each, beside the message and its record; large ones go in pieces of 5 MB."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    be_a_fit(monkeypatch)
    parts = {"order": b"content", "model": bytes(k % 251 for k in range(size))}
    message = Message(as_record(parts), dst_node_id=3, message_type="train")
    sent = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    assert len(sent) == (4 if size <= 1 << 20 else 3 + 2 + -(-size // 5_242_880))
    got: Any = inflate_object_from_contents(message.object_id, sent)
    assert as_parts(got.content) == parts


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

    from fl_lightning.compat.flower_site import dropping_incomplete

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


@pytest.mark.parametrize("taken", [True, False], ids=["with the message", "before it took the message"])
def test_a_message_is_answered_if_its_worker_dies(taken, monkeypatch):
    """Also if it dies after it took the task: Flower alone would never answer. The next order stays for the next worker."""
    from datetime import timedelta

    from flwr.app import Message, RecordDict
    from flwr.supercore.constant import TaskType
    from flwr.supercore.date import now
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fl_lightning.compat.flower_site import answering_unread

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

    class Grid:
        pushed: list[Any] = []

        def push_messages(self, messages: list[Any]) -> list[str]:
            self.pushed += messages
            if len(self.pushed) == 1:
                raise ObjectPushError("object", 7, "session")
            return ["second"]

    be_a_fit(monkeypatch)
    link = object.__new__(ServerLink)
    link._grid = Grid()
    assert link.push(3, {"order": b"content"}, "0", 60.0) == "second"
    assert [as_parts(message.content) for message in Grid.pushed] == [{"order": b"content"}] * 2
    assert Grid.pushed[0].object_id != Grid.pushed[1].object_id


@pytest.mark.parametrize("strange", ["no reply", "no bytes"])
def test_a_reply_that_is_not_named_bytes_is_the_sites_own_error(strange):
    """An exception here would look like a lost SuperLink, and end the run of all sites."""
    from flwr.app import ConfigRecord, RecordDict

    records = {"no reply": {"other": ConfigRecord({"bytes": b"content"})}, "no bytes": {"reply": ConfigRecord({"bytes": 1.0})}}
    contents = {"strange": RecordDict(records[strange]), "good": as_record({"reply": b"content"})}

    def message(order: str) -> Any:
        told = SimpleNamespace(reply_to_message_id=order)
        return SimpleNamespace(metadata=told, content=contents[order], has_error=lambda: False)

    link = object.__new__(ServerLink)
    link._grid = SimpleNamespace(pull_messages=lambda orders: [message(order) for order in orders])
    assert list(link.pull(["strange", "good"])) == [Reply("strange", b""), Reply("good", b"content")]


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
