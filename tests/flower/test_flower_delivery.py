"""What a SuperLink does with orders and replies while lines are cut, on Flower's own state. Run with ``-m flower``."""

import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower import FLOWER, installed_version
from fl_lightning.compat.flower_line import LostError, in_pieces, is_of_the_line, noticing

own = pytest.importorskip("flower_own", reason="needs flwr", exc_type=ImportError)
pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(installed_version() != FLOWER, reason="needs flwr of the tested minor version"),
]


@pytest.fixture
def post(tmp_path, monkeypatch) -> Any:
    return own.Post(str(tmp_path / "state.db"), monkeypatch)


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
    missing = post.reply(taken, sent=2)
    assert post.answers(order) == []
    post.fall_silent(80)
    assert post.answers(order) == []
    post.fall_silent(91)
    assert post.answers(order) == [5]
    assert len(missing) == 4  # the message, and three pieces


def test_an_order_is_delivered_to_the_next_supernode_and_its_reply_needs_only_what_is_missing(post):
    order = post.order()
    (taken,) = post.taken()
    assert post.taken() == []
    first = post.reply(taken, sent=2)
    post.fall_silent(40)
    post.start()
    (again,) = post.taken()
    assert again.metadata.message_id == taken.metadata.message_id
    second = post.reply(again)
    assert len(first) == 4
    assert len(second) == 2  # the last piece, and the message
    assert post.answers(order) == [None]
    post.fall_silent(40)
    post.start()
    assert post.taken() == []


def test_an_error_takes_the_place_of_a_reply_that_is_not_complete_of_which_nothing_stays_on_the_disk(post):
    order = post.order()
    (taken,) = post.taken()
    begun = len(post.state.object_store)
    post.reply(taken, sent=2)
    assert len(post.state.object_store) > begun
    post.reply(taken, error=2)
    (answer,) = post.state.get_message_res(message_ids={order}, run_id=post.run)
    assert answer.error.code == 2
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
        answered(413, "<html>Request Entity Too Large</html>"),
        answered(500, told),
        answered(502, "<html>Bad gateway</html>"),
    ]
    final = [
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer"),
        answered(401, '{"detail": "Invalid SuperNode authentication"}'),
        answered(403, told),
        answered(412, told),
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
    request = PushObjectRequest(object_id="a", object_content=own.LARGE)
    client.PushObject(request)
    ((headers, parts),) = seen
    assert b"".join(parts) == request.SerializeToString(deterministic=True)
    assert int(headers["content-length"]) == sum(map(len, parts))
    assert max(map(len, parts)) == 65536
    assert "transfer-encoding" not in headers
    assert held[0] <= 2**20  # the system doubles what is set


def test_a_supernode_that_drops_a_message_ends():
    def step(**given: Any) -> str:
        with contextlib.suppress(ValueError, own.ObjectUnavailableError):  # Flower logs it
            given["pull_object"](1)
        return "done"

    def broken(number: int) -> None:
        raise ValueError("gone")

    def late(number: int) -> None:
        raise own.ObjectUnavailableError("1")

    assert noticing(step, ("pull_object",))(pull_object=lambda number: b"") == "done"
    assert noticing(step, ("pull_object",))(pull_object=late) == "done"
    with pytest.raises(LostError, match="A message was lost: gone"):
        noticing(step, ("pull_object",))(pull_object=broken)
