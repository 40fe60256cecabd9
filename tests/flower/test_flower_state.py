"""What stands in for Flower's own code, on Flower's own state. Run with ``-m flower``."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import FLOWER, installed_version, patient
from fl_lightning.compat.flower_contents import LARGE, getting, putting
from fl_lightning.compat.flower_messages import pieces_of, receive
from fl_lightning.compat.flower_server import Reply, ServerLink
from fl_lightning.compat.flower_superlink import signature_check

own = pytest.importorskip("flower_own", reason="needs flwr", exc_type=ImportError)
pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() != FLOWER, reason="needs flwr of the tested minor version"),
]


@pytest.fixture(autouse=True)
def _be_a_fit(monkeypatch):
    own.be_a_fit(monkeypatch)


@pytest.mark.parametrize("who", ["a site", "revoked", "unknown", "nobody", "a thief", "late", "early", "no key"])
def test_what_a_registered_site_has_signed_just_now_passes(who, monkeypatch):
    """By the headers that Flower's own SuperNode adds."""
    from datetime import datetime, timezone

    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode import node_auth_http_interceptor as own_signature

    private, other = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    state = own.Post("state.db", monkeypatch).state
    if who != "unknown":
        node = state.create_node(own.NOOP_FLWR_AID, own.NOOP_ACCOUNT_NAME, public_key_to_bytes(private.public_key()), 15)
        if who == "revoked":
            state.delete_node(own.NOOP_FLWR_AID, node)
    apart = timedelta(seconds={"late": -310, "early": 10}.get(who, 0))
    monkeypatch.setattr(own_signature, "now", lambda: datetime.now(timezone.utc) + apart)
    context, request = SimpleNamespace(request=None), SimpleNamespace(headers={})
    context.request = request
    monkeypatch.setattr(own_signature, "add_headers", lambda request, headers: request.headers.update(headers))
    signing = own_signature.NodeAuthHttpInterceptor(other if who == "a thief" else private, private.public_key())
    signing.intercept(context, lambda context: None)
    headers = {} if who == "nobody" else request.headers | ({"flwr-public-key": "?"} if who == "no key" else {})
    app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state)))
    assert signature_check(app)(headers) == (who == "a site")


# ---------------------------------------------------------------- messages and their pieces


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 11_000_000])
def test_a_message_is_one_object_and_the_pieces_of_its_large_contents(size):
    """Flower's own checks and readers take each of them."""
    parts, store = {"order": b"content", "model": bytes(k % 251 for k in range(size))}, own.Runtime()
    store.push(parts)
    assert len(store.objects) == (1 if size <= 1 << 20 else 1 + -(-size // 5_242_880))
    for name, content in store.objects.items():
        own.validate_object_content(content)
        assert own.get_object_id(content) == name
    (whole,) = [store.objects[store.tree.object_id]]
    assert {child.object_id for child in store.tree.children} == set(own.get_object_children_ids_from_object_content(whole))
    message, got = store.pull()
    assert got == parts
    assert message.metadata.dst_node_id == 3
    assert message.metadata.message_type == "train"
    assert store.confirmed == [store.tree.object_id]


def test_a_message_with_a_missing_piece_is_not_confirmed():
    store = own.Runtime()
    store.push({"order": bytes(6_000_000)})
    del store.objects[max(store.objects, key=lambda name: len(store.objects[name]))]
    with pytest.raises(own.ObjectPullError):
        store.pull()
    assert not store.confirmed


@pytest.mark.parametrize("limit", [0.0, None])
def test_a_worker_waits_for_a_piece_as_long_as_it_takes(limit):
    """Where others give up, here at once, it has the message when a later request finds it."""

    class Late(own.Runtime):
        asked = 0

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            self.asked += 1
            return super().PullObject(request) if self.asked > 2 else own.PullObjectResponse(object_found=True)

    store = Late()
    store.push({"order": b"content"})
    if limit is None:
        assert store.pull(limit)[1] == {"order": b"content"}
    else:
        with pytest.raises(own.ObjectPullError):
            store.pull(limit)


@pytest.mark.parametrize("strange", ["text", "an array", "a number", "others' pieces", "one piece again and again"])
def test_other_records_are_refused_and_confirmed(strange):
    """What was refused must not stay on the server's disk. One piece, named a thousand times, could fill the memory."""
    records: dict[str, Any] = {"text": own.ConfigRecord({"bytes": "1"}), "a number": own.MetricRecord({"bytes": 1})}
    records["an array"] = own.ArrayRecord({"bytes": own.Array("uint8", (1,), "bytes", b"1")})
    store, pieces = own.Runtime(), pieces_of(bytes(11_000_000))
    assert len(dict(pieces)) == 3  # those of a model of zeros have different numbers
    store.reply("another site", {"reply": bytes(6_000_000)})
    records["others' pieces"] = own.ConfigRecord({"pieces": [child.object_id for child in store.replies[0][1].children]})
    records["one piece again and again"] = own.ConfigRecord({"pieces": [pieces[0][0]] * 1000})
    store.reply("strange", own.RecordDict({"order": records[strange]}), dict(pieces[:1]) if "again" in strange else ())
    with pytest.raises(ValueError, match="something other than named bytes"):
        receive(store, store.replies[1][1], None, 7)
    assert store.confirmed == [store.replies[1][1].object_id]


# ---------------------------------------------------------------- a site's SuperNode


@pytest.mark.parametrize("step", ["pull_object", "confirm_message_received"])
def test_a_message_of_a_run_that_ends_while_it_arrives_is_dropped(step):
    """In Flower's own state: nothing is left that a worker would take, and then wait for its contents forever."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supernode.servicer.runtime.runtime_handlers import acquire_task
    from flwr.supernode.start_client_internal import _pull_and_store_message

    from fl_lightning.compat.flower_line import noticing

    store = own.InMemoryObjectStore()
    state = own.InMemoryNodeState(store)
    state.set_node_id(3)
    state.store_run(Run.create_empty(7))
    message = own.order()
    tree, objects = own.objects_of(message)

    def ended(*_: object) -> bytes:
        raise RunNotRunningException

    calls = {"pull_object": lambda _, name: objects[name], "confirm_message_received": lambda *_: None, step: ended}
    where = {"state": state, "object_store": store, "node_config": {}, "trusted_entities": None}
    run = {"get_run": ended, "get_fab": ended, "receive": lambda: (message, tree)}
    noted = noticing(_pull_and_store_message, ("pull_object", "confirm_message_received"))
    assert noted(**where, **run, **calls) is None
    assert not acquire_task(AcquireTaskRequest(supported_task_types=[own.TaskType.CLIENT_APP]), state).token
    assert len(store) == 0


def test_a_worker_waits_for_the_message_of_its_task(monkeypatch):
    """The SuperNode makes the task a moment earlier; a worker that took it had no message, and nobody answered the order."""
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse

    from fl_lightning.compat import flower_site

    store, asked = own.Runtime(), list[Any]()
    store.reply("m", {"order": b"content"})
    pulled = store.PullMessages

    def late(request: Any) -> Any:
        asked.append(request)
        return pulled(request) if len(asked) > 2 else PullAppMessagesResponse()

    monkeypatch.setattr(store, "PullMessages", late)
    monkeypatch.setattr(flower_site, "_LATE", 0.0)
    assert flower_site._message(store, None, 7)[1] == {"order": b"content"}
    assert len(asked) == 3


@pytest.mark.parametrize("taken", [True, False], ids=["with the message", "before it took the message"])
def test_a_message_is_answered_if_its_worker_dies(taken, monkeypatch):
    """Also if it dies after it took the task: Flower alone would never answer. The next order stays for the next worker."""
    from flwr.supercore.date import now

    from fl_lightning.compat.flower_supernode import answering_unread

    expired = answering_unread(own.InMemoryNodeState._on_task_tokens_expired)
    monkeypatch.setattr(own.InMemoryNodeState, "_on_task_tokens_expired", expired)
    state = own.InMemoryNodeState(own.InMemoryObjectStore())
    state.set_node_id(3)
    orders = [state.store_message(own.identified(own.order(kind=kind))) for kind in ("train", "evaluate")]
    task, later = (state.create_task(task_type=own.TaskType.CLIENT_APP, run_id=7) for _ in orders)
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


# ---------------------------------------------------------------- the server's connection


def test_an_order_whose_contents_were_lost_is_pushed_again():
    """As when the SuperLink dies after the message and before its contents, which the next one then refuses."""

    class Dying(own.Runtime):
        trees: list[str] = []

        def PushObject(self, request: Any) -> Any:  # noqa: N802
            self.trees.append(self.tree.object_id)
            if len(self.trees) == 1:
                raise own.ObjectPushError("object", 7, "session")
            return super().PushObject(request)

    store = Dying()
    assert store.link().push(3, {"order": b"content"}, 60.0, 60.0) == "m"
    assert store.trees[0] != store.trees[-1] == store.tree.object_id
    assert receive(store, store.tree, None, 7)[1] == {"order": b"content"}


def pulled_beside(store: Any) -> list[Reply]:
    """Return what a fit gets of a strange reply and of a good one."""
    store.reply("good", {"reply": b"content"})
    return list(store.link().pull(["strange", "good"]))


@pytest.mark.parametrize(("name", "content"), [("other", b"content"), ("reply", 1.0), ("", None)])
def test_a_reply_that_is_not_named_bytes_is_the_sites_own_error_and_one_of_flower_is_told(name, content):
    """An exception here would look like a lost SuperLink, and end the run of all sites."""
    store, error = own.Runtime(), own.Error(code=2, reason="the worker died")
    store.reply("strange", own.RecordDict({name: own.ConfigRecord({"bytes": content})}) if name else error)
    assert pulled_beside(store) == [Reply("strange", b"") if name else Reply("strange", None, 2), Reply("good", b"content")]


@pytest.mark.parametrize(
    "content", [b"", b"junk", b"Message  3\x00\xff\xff\xff", b"Array  2\x00{}", b"Strange  1\x00a", b"RecordDict  2\x00[]"]
)
@pytest.mark.parametrize("children", [True, False])
def test_objects_that_are_no_message_are_the_sites_own_error(children, content):
    store = own.Runtime()
    store.reply("strange", {"reply": own.LARGE})
    tree = store.replies[0][1]
    store.objects[tree.object_id] = content
    if not children:
        del tree.children[:]
    assert pulled_beside(store) == [Reply("strange", b""), Reply("good", b"content")]


def test_a_model_is_cut_once_for_all_sites(monkeypatch):
    """Both get the same pieces; another model with the same bytes is cut again."""
    cut: list[Any] = []
    cutting = lambda content: cut.append(content) or pieces_of(content)  # noqa: E731
    monkeypatch.setattr("fl_lightning.compat.flower_server.pieces_of", cutting)
    store, model = own.Runtime(), bytearray(3_000_000)
    link = store.link()
    for site in (3, 4):
        link.push(site, {"order": bytes([site]), "model": model}, 60.0, 60.0)
        assert receive(store, store.tree, None, 7)[1] == {"order": bytes([site]), "model": model}
    assert len(cut) == 1
    link.push(3, {"order": b"5", "model": bytearray(model)}, 60.0, 60.0)
    assert len(cut) == 2


def test_replies_are_fetched_one_after_another_and_a_lost_one_costs_its_site():
    """The second is not asked for before the first has been used: each may hold a model."""
    store = own.Runtime()
    for number in range(3):
        store.reply(str(number), {"reply": bytes([number]) * 3_000_000})
    del store.objects[max(store.objects, key=lambda name: store.objects[name].count(bytes([1])))]
    replies = store.link().pull(["0", "1", "2"])
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


# ---------------------------------------------------------------- contents in files

CONTENTS = Path("contents")


@pytest.fixture
def store():
    """Return an object store, and a piece of a model with its id, which is registered."""
    found = own.SqlObjectStore(str(Path.cwd() / "state.db"))
    found.initialize()
    content = own.ArrayChunk(memoryview(bytes(LARGE))).deflate()
    name = own.get_object_id(content)
    found.preregister(7, own.ObjectTree(object_id=name))
    CONTENTS.mkdir()
    put, get = putting(own.SqlObjectStore.put, CONTENTS), getting(own.SqlObjectStore.get, CONTENTS)
    return found, SimpleNamespace(put=put, get=get), content, name


def test_a_large_content_is_in_a_file(store):
    found, kept, content, name = store
    assert kept.get(found, name) == b""  # known, but not there
    kept.put(found, name, content)
    assert kept.get(found, name) == content
    assert (CONTENTS / name).read_bytes() == content
    assert len(found.get(name)) < 100
    kept.put(found, name, content)
    assert [file.name for file in CONTENTS.iterdir()] == [name]
    for spoil in (lambda file: file.write_bytes(content[:-1]), lambda file: file.unlink()):
        spoil(CONTENTS / name)
        assert kept.get(found, name) is None


def test_a_content_that_is_refused_leaves_no_file(store):
    found, kept, content, name = store
    with pytest.raises(ValueError, match="does not match content hash"):
        kept.put(found, name, content + b"more")
    found.delete(name)
    with pytest.raises(own.NoObjectInStoreError):
        kept.put(found, name, content)
    assert not [*CONTENTS.iterdir()]
    assert kept.get(found, name) is None


def test_a_small_content_is_in_the_database(store):
    found, kept, _, _ = store
    content = own.ArrayChunk(memoryview(b"few")).deflate()
    name = own.get_object_id(content)
    found.preregister(7, own.ObjectTree(object_id=name))
    kept.put(found, name, content)
    assert kept.get(found, name) == content
    assert not [*CONTENTS.iterdir()]
