"""How orders and replies travel through a SuperLink, and what happens to those that are lost or late."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.compat.flower_server import Node, Reply
from fl_lightning.errors import RankError
from fl_lightning.flower.wire.pool import FlowerPool, FlowerTransport, SilenceWatch
from fl_lightning.flower.wire.server_folder import ServerFolder
from fl_lightning.flower.wire.transport import Answer
from fl_lightning.settings.server import Faults


def test_the_transport_names_sites_that_are_offline_or_revoked():
    nodes = [Node(10, "a", True), Node(11, "b", False)]
    link: Any = SimpleNamespace(nodes=lambda: nodes)
    transport = FlowerTransport(link, [10, 11, None, 12])
    assert transport.absent() == {1: "it is offline", 2: "it was revoked", 3: "it was revoked"}
    transport.send(2, {}, None)
    assert list(transport.answers()) == [Answer(2, None, "the server's SuperLink refused the order")]


def sent(link: Any, *nodes: int | None, seconds: float | None = None, **settings: Any) -> FlowerTransport:
    """Return a transport that has sent an order to each of these nodes."""
    transport = FlowerTransport(link, nodes, **settings)
    for client in range(len(nodes)):
        transport.send(client, {"order": b"%d" % client}, seconds)
    return transport


def test_each_cause_is_told_and_what_was_lost_on_its_way_is_no_failure_of_the_site():
    """A site that is revoked in a round is not called silent."""
    replies = [(10, 5), (11, 5), (11, 3), (12, 8), (10, 3), (12, 4)]
    link = Link([[Reply(f"{node}-{number}", None, error) for number, (node, error) in enumerate(replies, 1)]])
    silent = "it has given no sign of life for 90 s ('federation.pool.timeout')"
    causes = [silent, "it was revoked", "it was revoked", "its worker died"]
    lost = ["the order was lost on its way", "its reply was lost on its way"]
    told = [Answer(client, None, cause, lost=cause in lost) for client, cause in enumerate([*causes, *lost])]
    assert list(sent(link, *(node for node, _ in replies), patience=90).answers()) == told


class Link:
    """A SuperLink that dies once, and answers only what was pushed afterwards."""

    def __init__(self, replies: list[list[Reply]]) -> None:
        self.replies, self.pushed, self.died = replies, [], True
        self.patience: set[float] = set()

    def push(self, node: int, parts: Any, seconds: float, patience: float) -> str:
        self.pushed.append((node, parts))
        self.patience.add(patience)
        return f"{node}-{len(self.pushed)}"

    def pull(self, orders: Any) -> list[Reply]:
        self.asked = sorted(orders)
        return self.replies.pop(0)

    def nodes(self) -> list[Node]:
        return [Node(10, "ten", True), Node(12, "twelve", True)]

    def recovered(self) -> bool:
        died, self.died = self.died, False
        return died


def test_orders_without_an_answer_are_lost_when_the_superlink_has_started_again(capsys):
    """The exchange sends them again; what comes of the first ones is not waited for."""
    link = Link([[Reply("11-2", b"early")], [Reply("10-1", b"late"), Reply("10-4", b"ten")], [Reply("12-5", b"twelve")]])
    transport, told = sent(link, 10, 11, 12), []
    for answer in transport.answers():
        told.append(answer)
        if answer.lost:
            transport.send(answer.client, {"order": b"again"}, None)
    lost = [Answer(client, None, "the SuperLink was started again", lost=True) for client in (0, 2)]
    assert told == [Answer(1, b"early"), *lost, Answer(0, b"ten"), Answer(2, b"twelve")]
    assert [node for node, *_ in link.pushed] == [10, 11, 12, 10, 12]
    assert capsys.readouterr().out == "The SuperLink is back. Orders without an answer are sent again.\n"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (507, "The disk of the server's folder is full. Free space, and resume from the last checkpoint: --ckpt_path last."),
        (401, "the time of this machine was changed, or another fit uses the folder. .* the other fit, and resume from"),
        (500, r"The connection to the SuperLink was lost \(HTTPError: .*\). Start 'fl-lightning serve' again, and resume"),
    ],
)
def test_a_fit_says_why_its_server_refuses_it(status, said):
    """A full disk and a wrong clock read as a lost connection."""

    class HTTPError(Exception):
        response = SimpleNamespace(status_code=status)

    def push(*_: Any) -> str:
        raise HTTPError(f"status {status}")

    with pytest.raises(RankError, match=said):
        sent(SimpleNamespace(push=push), 10)


def test_an_order_ends_at_its_deadline():
    link = Link([[], []])
    link.died = False
    assert list(sent(link, 10, seconds=0.04).answers()) == [Answer(0, None, "no answer within its deadline")]


@pytest.mark.parametrize(("policy", "given", "patience"), [("fatal", None, 43200), ("skip", None, 300), ("skip", 90, 90)])
def test_how_long_a_site_may_be_silent(policy, given, patience, tmp_path, monkeypatch):
    pool, link = FlowerPool(str(tmp_path), timeout=given), Link([[]])
    monkeypatch.setattr("fl_lightning.flower.wire.pool.require_flower", lambda: None)
    monkeypatch.setattr("fl_lightning.flower.wire.pool.ServerLink", lambda *_: link)
    monkeypatch.setattr(FlowerPool, "_wait", lambda *_: {"a": 10})
    monkeypatch.setattr(ServerFolder, "local_address", "")
    monkeypatch.setattr(ServerFolder, "certificate", b"")
    monkeypatch.setattr(ServerFolder, "secret", b"")
    ServerFolder(tmp_path).number("a")
    transport, _ = pool._connect(SimpleNamespace(faults=Faults(policy)))
    transport.send(0, {}, None)
    assert link.patience == {patience}


def test_a_silent_site_is_named_once_and_when_it_is_back(monkeypatch, capsys):
    clock = [10_000.0]
    monkeypatch.setattr("fl_lightning.flower.wire.pool.time", SimpleNamespace(time=lambda: clock[0]))
    watch = SilenceWatch(43200)
    for now in range(0, 3 * 3600, 5):
        clock[0] = 10_000.0 + now
        watch.look([Node(1, "north", True, clock[0] - 4), Node(2, "south", False, 10_000.0)])
    assert re.search(
        r"^Site south .* since [-0-9]+ [:0-9]+ \(60 s\)\. Its order waits until [-0-9]+ [:0-9]+\.\n$", capsys.readouterr().out
    )
    for _ in range(2):
        watch.look([Node(2, "south", True, clock[0])])
    assert capsys.readouterr().out == "Site south is back after 180 min.\n"
