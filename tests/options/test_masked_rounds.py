"""The protocol of a round under masks: who leaves, and what a cheating server or client attempts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from masked_cohort import PUBLIC, Cohort, changed, described, plain, random_bytes, random_values, same, wrong_shares

from fl_lightning.errors import ClientError, ProtocolError
from fl_lightning.options.secure_aggregation.client import MaskingClient
from fl_lightning.options.secure_aggregation.description import least_of
from fl_lightning.options.secure_aggregation.keys import KeyRing
from fl_lightning.options.secure_aggregation.messages import packed_announcement


@given(st.sets(st.integers(0, 11), min_size=3, max_size=8), st.data())
def test_the_sum_of_those_who_delivered(clients, data):
    """Clients leave before their keys, after them, after their shares, or after their masked update: to the last bit."""
    clients = sorted(clients)
    cohort, values = Cohort(described(clients)), random_values()
    most = len(clients) - least_of(len(clients), 0.67)
    gone = data.draw(st.lists(st.sampled_from(clients), max_size=most, unique=True))
    when = {client: data.draw(st.sampled_from(["keys", "shares", "update", "list", "open"])) for client in gone}
    steps = ["keys", "shares", "update", "list", "open"]
    for client, step in when.items():
        for later in steps[steps.index(step) :]:
            cohort.away.setdefault(later, set()).add(client)
    found = cohort.run(values, lost=cohort.away.get("update", ()))
    delivered = [client for client in clients if when.get(client, "open") in ("list", "open")]
    assert same(found, plain(values, delivered))
    assert not cohort.refused


@pytest.mark.parametrize("step", ["keys", "shares", "update", "list", "open"])
def test_too_few_open_nothing(step):
    """Three clients need all three: a message, and no share has left."""
    shares: list[Any] = []
    cohort = Cohort(described(range(3)), lambda s, c, what: (shares.append(what) if s == "answer open" else None, what)[1])
    cohort.away[step] = {1}
    with pytest.raises(ClientError, match=r"2 (of 3 clients|clients have sent shares)"):
        cohort.run(random_values(), lost={1} if step == "update" else ())
    if step != "open":
        assert not shares


@pytest.mark.parametrize(("clients", "least"), [(3, 3), (4, 3), (5, 4), (10, 7), (100, 67)])
def test_more_than_two_thirds_must_help(clients, least):
    assert least_of(clients, 0.67) == least
    assert least_of(clients, 1.0) == clients


def told(step: str, change: Callable[[Any], Any], clients: tuple[int, ...] = (0,)) -> Callable[[str, int, Any], Any]:
    """Change what some clients are told in a step, or what they answer."""
    return lambda at, client, what: change(what) if at == step and client in clients else what


def within(name: str, **entries: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change entries of a part of a message; ``of_3`` is the entry of client 3."""
    return lambda what: {
        **what,
        name: {**what[name], **{key.removeprefix("of_"): change(what[name]) for key, change in entries.items()}},
    }


def invented(what: Any) -> Any:
    """Sign client 3's keys with a key of the server's own."""
    mine = KeyRing(ec.generate_private_key(ec.SECP384R1()), PUBLIC)
    announcement = packed_announcement(MaskingClient(3, described(), mine, random_bytes).announce())
    return within("announced", of_3=lambda _: announcement)(what)


SIGNATURE, SHARES = "The signature of 'site 3' under its keys is wrong", "The shares of 'site 3' were changed on their way"
LIST = "{} of 5 clients have signed the list of survivors, but removing the masks takes 4 or more"


@pytest.mark.parametrize(
    ("cheat", "message", "survivors"),
    [
        (told("shares", within("announced", of_3=lambda keys: changed(keys["3"]))), SIGNATURE, range(1, 5)),
        (told("shares", invented), SIGNATURE, range(1, 5)),
        (told("update", within("sealed", of_3=lambda shares: changed(shares["3"]))), SHARES, range(1, 5)),
        (told("update", within("sealed", of_3=lambda shares: shares["2"])), SHARES, range(1, 5)),
        (told("list", lambda what: {**what, "delivered": [0, 1, 2, 4]}), LIST.format(1), range(5)),
        (
            told("open", lambda what: {**what, "signatures": {k: changed(one) for k, one in what["signatures"].items()}}),
            LIST.format(1),
            range(5),
        ),
        (
            told("open", lambda what: {**what, "signatures": {"1": what["signatures"]["1"]}}),
            LIST.format(2),
            range(5),
        ),
        (told("update", within("description", model=lambda _: "other")), LIST.format(1), None),
    ],
    ids=[
        "other key",
        "invented",
        "other share",
        "another's share",
        "other list",
        "own signatures",
        "few signatures",
        "other model",
    ],
)
def test_a_server_that_treats_one_client_differently_gets_nothing_from_it(cheat, message, survivors):
    """The others go on without it, unless it has masks that theirs do not remove."""
    cohort, values = Cohort(described(), cheat), random_values()
    try:
        opened = cohort.run(values)
    except ClientError:
        opened = None
    assert message in cohort.refused[0]
    if survivors is not None:
        assert opened is not None
        assert same(opened, plain(values, survivors))


def test_no_server_lowers_the_threshold():
    """Whatever it describes, more than two thirds must help."""
    lower = {"keys": within("terms", threshold=lambda _: 0.1), "update": within("description", threshold=lambda _: 0.1)}
    cohort = Cohort(described(), lambda step, client, what: lower.get(step, lambda same: same)(what))
    cohort.round.begin()
    cohort.masked(random_values())
    message = "3 of 5 clients are on the list of survivors, but removing the masks takes 4 or more"
    with pytest.raises(ProtocolError, match=message):
        cohort.clients[0].agree([0, 1, 2])


def test_each_step_is_taken_once_and_in_order():
    """A second list, a second opening, and steps that were skipped."""
    cohort = Cohort(described())
    cohort.run(random_values())
    client, signatures = cohort.clients[0], {}
    for ask in (
        lambda: client.announce(),
        lambda: client.share({}),
        lambda: client.receive(described(), {}),
        lambda: client.mask(torch.zeros(1)),
        lambda: client.agree([0, 1, 2, 3]),
        lambda: client.open(signatures),
    ):
        with pytest.raises(ProtocolError, match="of a round under masks once, and after the steps before it"):
            ask()
    early = Cohort(described())
    early.round.begin()
    with pytest.raises(ProtocolError, match="once, and after"):
        early.clients[0].agree([0, 1, 2, 3, 4])


def test_nobody_gets_both_the_own_mask_and_the_keys_of_one_client():
    """A server that has two lists signed, each by some, opens neither: less than two thirds have signed the same."""
    lists = {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3], 4: [0, 1, 2, 3, 4]}
    cohort = Cohort(described(), lambda step, client, what: {**what, "delivered": lists[client]} if step == "list" else what)
    with pytest.raises(ClientError):
        cohort.run(random_values())
    assert all("clients have signed the list of survivors, but" in cohort.refused[client] for client in range(5))


def test_a_list_of_those_who_sent_no_shares_is_not_signed():
    cohort = Cohort(described())
    cohort.away["shares"] = {4}
    cohort.round.begin()
    cohort.masked(random_values())
    for client, delivered, message in (
        (0, [0, 1, 2, 3, 4], "that has sent no shares"),
        (1, [0, 2, 3], "does not fit the round"),
    ):
        with pytest.raises(ProtocolError, match=message):
            cohort.clients[client].agree(delivered)


@pytest.mark.parametrize(
    ("clients", "lost", "liar"), [(5, (), 2), (8, (4,), 2), (20, (), 0)], ids=["of five", "one is lost", "of twenty"]
)
def test_wrong_shares_of_one_client_are_left_out(clients, lost, liar):
    """Of five, four must help, so one may lie; of eight, six; of 20, 14: almost three quarters of all choices have the liar.

    What is recovered is compared with what was signed.
    """
    values = random_values(range(clients))
    tamper = told("answer open", lambda what: wrong_shares(what, 10), (liar,))
    opened = Cohort(described(range(clients)), tamper).run(values, lost=lost)
    assert same(opened, plain(values, [k for k in range(clients) if k not in lost]))


UNREADABLE = {"keys": 3, "sealed": 4}
SHARES_WITH_SOME = [{"sealed": sealed} for sealed in ({}, {"0": "00"}, {"9" * 4000: "00"}, {"0": 5, "2": [1]})]
ODD_SHARES = [{"seeds": {"1": 5}, "secrets": {}}, {"seeds": "ab", "secrets": None}, {"seeds": {"9": "00"}}]


@pytest.mark.parametrize(
    ("step", "said", "delivered"),
    [
        *(("shares", said, [0, 2, 3, 4]) for said in (*SHARES_WITH_SOME, UNREADABLE)),
        ("keys", UNREADABLE, [0, 2, 3, 4]),
        ("list", UNREADABLE, range(5)),
        *(("open", said, range(5)) for said in (*ODD_SHARES, UNREADABLE)),
    ],
)
def test_an_odd_answer_of_one_client_is_none(step, said, delivered):
    """Who shares with some only is left out; otherwise those who hold nothing of it would refuse every list with its name."""
    values = random_values()
    cohort = Cohort(described(), told(f"answer {step}", lambda what: said, (1,)))
    assert same(cohort.run(values), plain(values, delivered))
    assert not cohort.refused


def test_wrong_shares_of_too_many_give_no_sum():
    def tamper(step: str, client: int, what: Any) -> Any:
        return wrong_shares(what, 20 * client) if step == "answer open" and client in (1, 2) else what

    message = r"Round 2: 5 clients have sent shares of a secret of client 0, which takes 4 that fit"
    with pytest.raises(ClientError, match=message):
        Cohort(described(), tamper).run(random_values())
