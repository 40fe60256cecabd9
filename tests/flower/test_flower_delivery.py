"""What a SuperLink does with orders and replies while lines are cut, on Flower's own state. Run with ``-m flower``."""

from __future__ import annotations

import contextlib
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import TESTED, installed_version
from fl_lightning.compat.flower_delivery import keep_orders, kind_of
from fl_lightning.compat.flower_line import TOO_LARGE, LostError, Trouble, in_pieces, is_of_the_line, noticing, telling_refusals
from fl_lightning.compat.flower_records import as_record

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() not in TESTED, reason="needs flwr of a tested minor version"),
]
LARGE = bytes(range(250)) * 50_000
"""A content of three pieces."""


class Post:
    """A SuperLink's state with one site, and what the fit and the site's SuperNode do with it."""

    def __init__(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
        from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

        keep_orders()
        self.state: Any = get_objectstore_linkstate_factories(database, get_federation_manager(is_simulation=False))[1].state()
        self.node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"key", 15)
        self.start()
        self.run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        for name, value in (("task_id", 5), ("run_id", self.run), ("node_id", 1)):
            monkeypatch.setattr(TaskIdentity, f"_{name}", value)

    def start(self) -> None:
        """Start the site's SuperNode."""
        assert self.state.activate_node(self.node, 15)

    def fall_silent(self, seconds: float) -> None:
        """Let the site's last sign of life be so long ago."""
        from flwr.server.superlink.linkstate.sql_linkstate import NodeModel
        from sqlalchemy import update

        with self.state.session() as session:
            session.execute(update(NodeModel).values(online_until=time.time() - seconds + 30, status="offline"))

    def _send(self, message: Any, pieces: int | None) -> list[str]:
        """Store a message, and push so many of its objects, or all; return those that were missing."""
        from flwr.app.message.message import remove_content_from_message
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        vars(message.metadata)["_message_id"] = message.object_id
        session = self.state.start_session(self.run)
        bare, tree = remove_content_from_message(message), get_object_tree(message)
        stored, missing = self.state.store_message_and_object_tree(bare, tree, session)
        assert stored
        for name, one in get_all_nested_objects(message).items():
            if name in missing[:pieces]:
                assert self.state.store_object(self.run, session, name, one.deflate())
        return list(missing)

    def order(self, patience: float = 90) -> str:
        """Send the site an order."""
        from flwr.app import Message

        message = Message(as_record({"order": b"train"}), dst_node_id=self.node, message_type=kind_of(patience), ttl=3600)
        vars(message.metadata).update(_run_id=self.run, _src_node_id=1)
        self._send(message, None)
        return str(message.metadata.message_id)

    def taken(self) -> list[Any]:
        """Return what the SuperNode gets."""
        return list(self.state.get_message_ins(node_id=self.node, limit=1))

    def reply(self, order: Any, pieces: int | None = None, error: int = 0) -> list[str]:
        """Send the site's reply, or so many of its objects; return those that were missing."""
        from flwr.app import Error, Message

        content = Error(error, "") if error else as_record({"reply": LARGE})
        message = Message(content, reply_to=order)
        vars(message.metadata)["_src_node_id"] = self.node
        return self._send(message, pieces)

    def answers(self, *orders: str) -> list[Any]:
        """Return what the fit gets: an error's code, or None for a reply."""
        found = self.state.get_message_res(message_ids=set(orders), run_id=self.run)
        return [one.error.code if one.has_error() else None for one in found]


@pytest.fixture
def post(tmp_path, monkeypatch) -> Post:
    return Post(str(tmp_path / "state.db"), monkeypatch)


def test_an_order_waits_for_a_silent_site_as_long_as_it_says(post):
    patient, hasty = post.order(patience=300), post.order(patience=60)
    post.fall_silent(90)
    assert post.answers(patient) == []
    assert post.answers(hasty) == [5]
    post.fall_silent(301)
    assert post.answers(patient) == [5]


def test_a_reply_is_there_when_its_contents_are(post):
    order = post.order()
    (taken,) = post.taken()
    missing = post.reply(taken, pieces=2)
    assert post.answers(order) == []
    post.fall_silent(80)
    assert post.answers(order) == []
    post.fall_silent(91)
    assert post.answers(order) == [5]
    assert len(missing) == 7  # message, records, array, and three pieces


def test_an_order_is_delivered_to_the_next_supernode_and_its_reply_needs_only_what_is_missing(post):
    order = post.order()
    (taken,) = post.taken()
    assert post.taken() == []
    first = post.reply(taken, pieces=5)
    post.fall_silent(40)
    post.start()
    (again,) = post.taken()
    assert again.metadata.message_id == taken.metadata.message_id
    second = post.reply(again)
    assert len(first) == 7
    assert len(second) == 2  # the last piece, and the message
    assert post.answers(order) == [None]
    post.fall_silent(40)
    post.start()
    assert post.taken() == []


def test_an_error_takes_the_place_of_a_reply_that_a_proxy_refuses(post):
    order = post.order()
    (taken,) = post.taken()
    post.reply(taken, pieces=2)
    post.reply(taken, error=TOO_LARGE)
    assert post.answers(order) == [TOO_LARGE]


def test_nothing_of_a_reply_that_was_replaced_stays_on_the_disk(post):
    order = post.order()
    (taken,) = post.taken()
    begun = len(post.state.object_store)
    post.reply(taken, pieces=5)
    assert len(post.state.object_store) > begun
    post.reply(taken, error=TOO_LARGE)
    (answer,) = post.state.get_message_res(message_ids={order}, run_id=post.run)
    post.state.object_store.delete(answer.metadata.message_id)
    assert len(post.state.object_store) == begun


# ---------------------------------------------------------------- the SuperNode


def answered(status: int, text: str) -> Exception:
    import httpx

    request = httpx.Request("POST", "https://fed.example.org")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, text=text, request=request))


def test_a_supernode_gives_up_only_what_the_superlink_refuses():
    import httpx

    told = '{"code": 3001, "detail": "no"}'
    passing = [
        httpx.ReadError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred (_ssl.c:1006)"),
        httpx.ConnectTimeout("_ssl.c:990: The handshake operation timed out"),
        httpx.ProxyError("407 Proxy Authentication Required"),
        answered(403, "<html>Access denied</html>"),
        answered(404, ""),
        answered(500, told),
        answered(502, "<html>Bad gateway</html>"),
    ]
    final = [
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer"),
        answered(401, '{"detail": "Invalid SuperNode authentication"}'),
        answered(403, told),
        answered(412, told),
        answered(413, "<html>"),
    ]
    assert [is_of_the_line(error) for error in passing] == [True] * len(passing)
    assert [is_of_the_line(error) for error in final] == [False] * len(final)


def test_a_request_is_written_a_little_at_a_time(monkeypatch):
    """With its length, because the server refuses a body of unknown length."""
    import httpx
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    seen: list[Any] = []
    held: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        parts = [bytes(part) for part in request.stream]  # type: ignore[union-attr]
        seen.append((request.headers, parts))
        with socket.socket() as line:
            connected = SimpleNamespace(get_extra_info=lambda name: line)
            request.extensions["trace"]("connection.connect_tcp.complete", {"return_value": connected})
            held.append(line.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        return httpx.Response(200, content=PullMessagesResponse().SerializeToString())

    client = in_pieces(FleetHttpClient)("https://fed.example.org", verify=False)
    client._client = httpx.Client(transport=httpx.MockTransport(handle))
    request = PushObjectRequest(object_id="a", object_content=LARGE)
    client.PushObject(request)
    ((headers, parts),) = seen
    assert b"".join(parts) == request.SerializeToString(deterministic=True)
    assert int(headers["content-length"]) == sum(map(len, parts))
    assert max(map(len, parts)) == 65536
    assert "transfer-encoding" not in headers
    assert held[0] <= 2**20  # the system doubles what is set


def test_a_supernode_that_drops_a_message_ends():
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

    def step(**given: Any) -> str:
        with contextlib.suppress(ValueError, ObjectUnavailableError):  # Flower logs it
            given["pull_object"](1)
        return "done"

    def broken(number: int) -> None:
        raise ValueError("gone")

    def late(number: int) -> None:
        raise ObjectUnavailableError("1")

    assert noticing(step, ("pull_object",))(pull_object=lambda number: b"") == "done"
    assert noticing(step, ("pull_object",))(pull_object=late) == "done"
    with pytest.raises(LostError, match="A message was lost: gone"):
        noticing(step, ("pull_object",))(pull_object=broken)


def test_a_reply_that_a_proxy_refuses_ends_with_an_error_that_both_sides_hear(post, tmp_path):
    from flwr.app import Message

    order = post.order()
    (taken,) = post.taken()
    sent: list[Any] = []

    def push(*, send: Any, push_object: Any, **_: Any) -> None:
        message = Message(as_record({"reply": LARGE}), reply_to=taken)
        vars(message.metadata).update(_message_id=message.object_id, _src_node_id=post.node)
        send(message, None, 1.0)
        try:
            push_object(post.run, "session", "object", LARGE)
        except Exception:  # Flower logs it
            return

    def send(message: Any, tree: Any, seconds: float) -> tuple[set[str], str]:
        sent.append(message)
        return set(), "session"

    def push_object(run: int, session: str, name: str, content: bytes) -> None:
        if len(content) > 2**20:
            raise answered(413, "<html>Request Entity Too Large</html>")

    telling_refusals(push, Trouble(tmp_path / "trouble"))(send=send, push_object=push_object, state=None)
    assert sent[-1].has_error()
    assert sent[-1].error.code == TOO_LARGE
    assert sent[-1].metadata.reply_to_message_id == order
    assert "'client_max_body_size 16m;'" in (tmp_path / "trouble").read_text()
