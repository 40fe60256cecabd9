"""What stands in for Flower's own code, on Flower's own state. Run with ``-m flower``."""

from __future__ import annotations

import pytest

from fl_lightning.compat.flower import TESTED, installed_version

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() != TESTED, reason="needs flwr of the tested minor version"),
]


@pytest.mark.parametrize("step", ["pull_object", "confirm_message_received"])
def test_a_message_of_a_run_that_ends_while_it_arrives_is_dropped(step, monkeypatch):
    """In Flower's own state: nothing is left that a worker would take, and then wait for its contents forever."""
    from flwr.app import Message, RecordDict
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
    from flwr.supernode.servicer.runtime.runtime_handlers import acquire_task
    from flwr.supernode.start_client_internal import _pull_and_store_message

    from fl_lightning.compat.flower_site import dropping_incomplete

    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(3)
    state.store_run(Run.create_empty(7))
    for name, value in (("task_id", 5), ("run_id", 7), ("node_id", 1)):  # as in the process of a fit
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)
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
