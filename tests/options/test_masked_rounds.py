"""The protocol of a round under masks: what a cheating server or client attempts, and what is opened."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_lightning.errors import ClientError, ProtocolError
from fl_lightning.functional.secret_sharing import PRIME, join_shares
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import add_words, from_words, to_words
from fl_lightning.messages import ModelLayout, ServerModel
from fl_lightning.options.secure_aggregation.client import MaskingClient, common_mask, list_content, own_mask
from fl_lightning.options.secure_aggregation.description import RoundDescription, RoundTerms, digest_of_model, least_of
from fl_lightning.options.secure_aggregation.keys import KeyRing, SecretKey, add_mask, openssh
from fl_lightning.options.secure_aggregation.messages import (
    announcement_in,
    packed,
    packed_announcement,
    unpacked,
)
from fl_lightning.options.secure_aggregation.server import MaskedRound

GRIDS = {"state": Grid(((40, 1.0), (3, None)), 10.0), "weight": Grid(((1, None),), 10.0)}
PRIVATE = [ec.generate_private_key(ec.SECP384R1()) for _ in range(20)]
PUBLIC = {f"site {k}": openssh(key) for k, key in enumerate(PRIVATE)}


def described(clients: Any = range(5), **changes: Any) -> RoundDescription:
    values: dict[str, Any] = {
        "federation": "f",
        "contract": "c",
        "session": "s",
        "round_idx": 2,
        "cohort": tuple((k, f"site {k}") for k in clients),
        "threshold": 0.67,
        "model": "m",
        "work": "w",
        "sizes": {"state": 43, "weight": 1},
        "grids": GRIDS,
    }
    return RoundDescription(**{**values, **changes})


def random_bytes(what: str) -> bytes:
    return secrets.token_bytes(32)


class Cohort:
    """Clients with keys of their own, and the server's half; ``tamper`` changes what the server sends or gets."""

    def __init__(self, description: RoundDescription, tamper: Callable[[str, int, Any], Any] = lambda step, client, what: what):
        self.description, self.tamper = description, tamper
        self.clients: dict[int, MaskingClient] = {}
        self.refused: dict[int, str] = {}
        self.away: dict[str, set[int]] = {}  # the clients that do not answer a step
        self.draw: Callable[[int], Callable[[str], bytes]] = lambda client: random_bytes
        self.round = MaskedRound(description, self.ask)

    def ask(self, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        answers = {}
        for client, request in requests.items():
            step = request["step"]
            if client in self.away.get(step, ()):
                continue
            try:
                sent = self.tamper(step, client, request)
                answers[client] = self.tamper(f"answer {step}", client, self.answer(client, step, sent))
            except ProtocolError as error:
                self.refused[client] = str(error)
        return answers

    def answer(self, client: int, step: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if step == "keys":
            ring = KeyRing(PRIVATE[client], PUBLIC)
            seen = RoundTerms.read_terms(request["terms"])
            self.clients[client] = MaskingClient(client, seen, ring, self.draw(client))
            return {"keys": packed_announcement(self.clients[client].announce())}
        masking = self.clients[client]
        if step == "shares":
            announced = {k: announcement_in(one) for k, one in unpacked(request["announced"]).items()}
            return {"sealed": packed(masking.share(announced))}
        if step == "list":
            return {"signature": masking.agree(request["delivered"]).hex()}
        seeds, keys = masking.open(unpacked(request["signatures"]))
        return {"seeds": packed(seeds), "secrets": packed(keys)}

    def words(self, client: int, values: torch.Tensor) -> torch.Tensor:
        own = Sums(grids=GRIDS, for_masks=True)
        own.add("state", values, float(client + 1))
        own.add("weight", 1.0, float(client + 1))
        return to_words(own, self.description.layout, len(self.description.cohort))

    def masked(self, values: Mapping[int, torch.Tensor], lost: Any = ()) -> dict[int, torch.Tensor]:
        found = {}
        for client, note in self.round.notes().items():
            try:
                sent = self.tamper("update", client, note)
                self.clients[client].receive(RoundDescription.read(sent["description"]), unpacked(sent["sealed"]))
            except ProtocolError as error:
                self.refused[client] = str(error)
                continue
            if client not in lost:
                found[client] = self.clients[client].mask(self.words(client, values[client]))
        return found

    def run(self, values: Mapping[int, torch.Tensor], lost: Any = ()) -> Sums:
        self.round.begin()
        sent = self.masked(values, lost)
        return self.opened(sent)

    def opened(self, sent: Mapping[int, torch.Tensor]) -> Sums:
        layout = self.description.layout
        total = layout.zeros()
        for words in sent.values():
            add_words(total, words, layout)
        self.round.open(total, [*sent], [*sent])
        return from_words(total, layout)


def random_values(clients: Any = range(12)) -> dict[int, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {client: torch.randn(43, generator=draw, dtype=torch.float64) for client in clients}


def plain(values: Mapping[int, torch.Tensor], clients: Any) -> Sums:
    sums = Sums(grids=GRIDS)
    for client in clients:
        sums.add("state", values[client], float(client + 1))
        sums.add("weight", 1.0, float(client + 1))
    return sums


def same(one: Sums, other: Sums) -> bool:
    return torch.equal(one.value("state"), other.value("state")) and one.scalar("weight") == other.scalar("weight")


@settings(max_examples=25, deadline=None)
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


# ---------------------------------------------------------------- a server that cheats


def changed(hexadecimal: str, place: int = 10) -> str:
    return hexadecimal[:place] + ("0" if hexadecimal[place] != "0" else "1") + hexadecimal[place + 1 :]


def with_other_key(step: str, client: int, what: Any) -> Any:
    """Give client 0 a key of the server's own for client 3."""
    if step != "shares" or client != 0:
        return what
    return {**what, "announced": {**what["announced"], "3": changed(what["announced"]["3"])}}


def with_invented(step: str, client: int, what: Any) -> Any:
    """Sign client 3's keys with a key of the server's own."""
    if step != "shares" or client != 0:
        return what
    mine = KeyRing(ec.generate_private_key(ec.SECP384R1()), PUBLIC)
    masking = MaskingClient(3, described(), mine, random_bytes)
    return {**what, "announced": {**what["announced"], "3": packed_announcement(masking.announce())}}


def with_other_share(step: str, client: int, what: Any) -> Any:
    return (
        {**what, "sealed": {**what["sealed"], "3": changed(what["sealed"]["3"])}} if (step, client) == ("update", 0) else what
    )


def with_anothers_share(step: str, client: int, what: Any) -> Any:
    return {**what, "sealed": {**what["sealed"], "3": what["sealed"]["2"]}} if (step, client) == ("update", 0) else what


def with_other_list(step: str, client: int, what: Any) -> Any:
    """Tell client 0 that client 3 is gone, whose own mask the others open."""
    return {**what, "delivered": [0, 1, 2, 4]} if (step, client) == ("list", 0) else what


def with_own_signatures(step: str, client: int, what: Any) -> Any:
    if (step, client) != ("open", 0):
        return what
    return {**what, "signatures": {name: changed(one) for name, one in what["signatures"].items()}}


def with_few_signatures(step: str, client: int, what: Any) -> Any:
    return {**what, "signatures": {"1": what["signatures"]["1"]}} if (step, client) == ("open", 0) else what


def with_other_description(step: str, client: int, what: Any) -> Any:
    """Describe another model to client 0."""
    return {**what, "description": {**what["description"], "model": "other"}} if (step, client) == ("update", 0) else what


def with_lower_threshold(step: str, client: int, what: Any) -> Any:
    name = {"keys": "terms", "update": "description"}.get(step)
    return what if name is None else {**what, name: {**what[name], "threshold": 0.1}}


@pytest.mark.parametrize(
    ("cheat", "message"),
    [
        (with_other_key, "The signature of 'site 3' under its keys is wrong"),
        (with_invented, "The signature of 'site 3' under its keys is wrong"),
        (with_other_share, "The shares of 'site 3' were changed on their way"),
        (with_anothers_share, "The shares of 'site 3' were changed on their way"),
        (with_other_list, "1 of 5 clients have signed the list of survivors, but removing the masks takes 4 or more"),
        (with_own_signatures, "1 of 5 clients have signed the list of survivors, but removing the masks takes 4 or more"),
        (with_few_signatures, "2 of 5 clients have signed the list of survivors, but removing the masks takes 4 or more"),
        (with_other_description, "1 of 5 clients have signed the list of survivors, but removing the masks takes 4 or more"),
    ],
)
def test_a_server_that_treats_one_client_differently_gets_nothing_from_it(cheat, message):
    """The others go on without it, if that is possible."""
    cohort, values = Cohort(described(), cheat), random_values()
    try:
        opened = cohort.run(values)
    except ClientError:
        opened = None
    assert message in cohort.refused[0]
    early = cheat in (with_other_key, with_invented, with_other_share, with_anothers_share)
    if cheat is not with_other_description:  # of which client 0 has masks that those of the others do not remove
        assert opened is not None
        assert same(opened, plain(values, range(1 if early else 0, 5)))


def test_no_server_lowers_the_threshold():
    """Whatever it describes, more than two thirds must help."""
    cohort = Cohort(described(), with_lower_threshold)
    cohort.round.begin()
    cohort.masked(random_values())
    with pytest.raises(
        ProtocolError, match="3 of 5 clients are on the list of survivors, but removing the masks takes 4 or more"
    ):
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


def test_keys_of_another_round_are_worth_nothing():
    """A signature covers all that is known of a round beforehand."""
    known = KeyRing(PRIVATE[0], PUBLIC)
    masking = MaskingClient(0, described(), known, random_bytes)
    signed = masking.announce()
    for change in ("federation", "contract", "session"):
        with pytest.raises(ProtocolError, match="is wrong"):
            known.check("site 0", "keys", signed.content(0, described(**{change: "another"}).terms), signed.signature)
    for other in (described(round_idx=3), described(range(6)), described(threshold=0.7)):
        with pytest.raises(ProtocolError, match="is wrong"):
            known.check("site 0", "keys", signed.content(0, other.terms), signed.signature)
    known.check("site 0", "keys", signed.content(0, described().terms), signed.signature)
    with pytest.raises(ProtocolError, match="is wrong"):
        known.check("site 0", "list", signed.content(0, described().terms), signed.signature)
    with pytest.raises(ProtocolError, match="not the one for which this client has announced keys"):
        masking.receive(described(round_idx=3), {})


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("change", [{"model": "n"}, {"work": "v"}, {}])
def test_nothing_is_learnt_of_those_who_were_told_of_another_model_or_order(change, lost):
    """Of ten clients, two were told something else, whom the server names as lost or as delivered; their numbers are zeros.

    It opens their own masks, or those that they share, but never both: what is left is noise. The third case is honest.
    """
    told = described(range(10), sizes={"state": 5000}, grids={"state": Grid(((4000, 1.0), (1000, None)), 10.0)})
    odd, cohort = replace(told, **change), Cohort(told)
    cohort.draw = lambda client: lambda what: hash_of(f"{client} {what}")
    cohort.round.begin()
    sent, delivered = {}, [*range(2 if lost else 0, 10)]
    for client, note in cohort.round.notes().items():
        cohort.clients[client].receive(odd if client < 2 else told, unpacked(note["sealed"]))
        sent[client] = cohort.clients[client].mask(told.layout.zeros())
    signatures = {client: cohort.clients[client].agree(delivered) for client in range(2, 10)}
    opened = [cohort.clients[client].open(signatures) for client in range(2, 10)]
    own, common = ({k: joined(held, k) for k in held[0]} for held in ([*kind] for kind in zip(*opened, strict=True)))
    assert (own.keys(), common.keys()) == ({*delivered}, {*range(10)} - {*delivered})
    seen = {client: words.clone() for client, words in sent.items()}
    for client, seed in own.items():
        add_mask(seen[client], own_mask(seed, (odd if client < 2 else told).digest), told.layout, -1)
    for client, secret in common.items():
        for other in {*range(10)} - {client}:
            key = common_mask(SecretKey(secret), cohort.round._announced[other].masking, odd.digest)
            add_mask(seen[client], key, told.layout, -1 if client < other else 1)
    two = seen[0].clone()
    add_words(two, seen[1], told.layout)
    assert is_noise(two)
    if lost:  # nothing but their own masks is left, which nobody has opened
        for client in (0, 1):
            add_mask(two, own_mask(hash_of(f"{client} seed"), odd.digest), told.layout, -1)
    else:
        for client in range(2, 10):
            add_words(two, seen[client], told.layout)
    assert bool((two == 0).all()) == (lost or not change)
    assert is_noise(two) != (lost or not change)


def joined(held: list[Mapping[int, bytes]], owner: int) -> bytes:
    """Return the secret that the shares of clients 2 to 9 give."""
    shares = {client: int.from_bytes(found[owner], "big") for client, found in zip(range(2, 10), held, strict=True)}
    return join_shares(dict([*shares.items()][:7])).to_bytes(32, "big")


def is_noise(words: torch.Tensor) -> bool:
    """Return whether words look uniform modulo 2**64."""
    return bool(stats.kstest((words.double() / 2.0**63).numpy(), "uniform", (-1, 2)).pvalue > 1e-3)


def test_the_same_key_twice_is_refused():
    cohort = Cohort(described(range(3)))
    cohort.draw = lambda client: (lambda what: bytes([7] * 32)) if client else random_bytes
    with pytest.raises(ClientError):
        cohort.round.begin()
    assert "Two clients of a round under masks have announced the same key" in cohort.refused[0]


def test_a_key_of_low_order_is_refused():
    """With it, the agreed secret would be 0 whatever the other's key is."""

    class Lax(KeyRing):
        def check(self, name: str, what: str, content: bytes, signature: bytes) -> None:
            pass

    victim = MaskingClient(0, described(range(3)), Lax(PRIVATE[0], PUBLIC), random_bytes)
    victim.announce()
    others = {k: MaskingClient(k, described(range(3)), KeyRing(PRIVATE[k], PUBLIC), random_bytes).announce() for k in (1, 2)}
    with pytest.raises(ProtocolError, match="A public key of the round under masks is not valid"):
        victim.share({**others, 1: replace(others[1], sealing=bytes(32))})


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {**described().plain(), "cohort": [[0, "a"], [0, "b"], [1, "c"]]},
        {**described().plain(), "cohort": [[0, "a"], [1, "a"], [2, "c"]]},
        {**described().plain(), "threshold": 2.0},
        {**described().plain(), "round_idx": float("nan")},
        {**described().plain(), "round_idx": 2.5},
        {**described().plain(), "round_idx": -1},
        {**described().plain(), "session": 3},
        {**described().plain(), "model": None},
        {**described().plain(), "cohort": [[-1, "a"], [1, "b"], [2, "c"]]},
        {**described().plain(), "cohort": [[PRIME - 1, "a"], [1, "b"], [2, "c"]]},
        {**described().plain(), "grids": {"state": {"pieces": [[43, 1.0]], "largest": float("inf"), "certain": False}}},
        {**described().plain(), "grids": {"state": {"pieces": [[43, float("nan")]], "largest": 1.0, "certain": False}}},
        {**described().plain(), "grids": {"state": {"pieces": [[-1, 1.0], [44, 1.0]], "largest": 1.0, "certain": False}}},
        {**described().plain(), "sizes": {"state": -1}},
        {**described().plain(), "sizes": {"state": 44, "weight": 1}},
        {**described().plain(), "grids": {"state": {"pieces": [["x", 1]], "largest": 1.0, "certain": False}}},
        {**described().plain(), "grids": {"other": {"pieces": [[1, 1.0]], "largest": 1.0, "certain": False}}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(values):
    with pytest.raises(ProtocolError, match="The description of the round under masks"):
        RoundDescription.read(values)


def test_names_in_a_model_cannot_pass_for_its_structure():
    """Two layouts whose names, written one after another with the lengths of the lists, are the same text."""
    tensors = {"w": torch.zeros(2)}
    one = ModelLayout((True,), {}, moving=("a",), held=(), unsent=("blist 0\x1f",))
    other = ModelLayout((True,), {}, moving=("alist 0\x1f",), held=("b",), unsent=())
    assert digest_of_model(ServerModel(1, 0, tensors, one)) != digest_of_model(ServerModel(1, 0, tensors, other))
    named = ServerModel(1, 0, tensors, one, broadcast={"c": torch.zeros(2)})
    assert digest_of_model(named) != digest_of_model(replace(named, broadcast={"d": torch.zeros(2)}))
    assert digest_of_model(named) != digest_of_model(replace(named, broadcast={}, first=named.broadcast))


def test_a_description_survives_the_way_to_a_site():
    there = RoundDescription.read(described().plain())
    assert there == described()
    assert there.digest == described().digest


# ---------------------------------------------------------------- clients that cheat


def with_wrong_shares(step: str, client: int, what: Any) -> Any:
    """Client 2 tells other shares than it holds."""
    if (step, client) != ("answer open", 2):
        return what
    return wrong_shares(what, 10)


def wrong_shares(what: Any, place: int) -> Any:
    return {kind: {owner: changed(share, place) for owner, share in shares.items()} for kind, shares in what.items()}


@pytest.mark.parametrize("lost", [(), (4,)])
def test_wrong_shares_of_one_client_are_left_out(lost):
    """Of five, four must help, so one may lie; of eight, six. What is recovered is compared with what was signed."""
    values = random_values()
    if lost:
        cohort = Cohort(described(range(8)), with_wrong_shares)
        assert same(cohort.run(values, lost=lost), plain(values, [0, 1, 2, 3, 5, 6, 7]))
    else:
        assert same(Cohort(described(), with_wrong_shares).run(values), plain(values, range(5)))


def test_one_liar_in_a_large_cohort_ends_no_round():
    """Of 20, 14 must help: almost three quarters of all choices of 14 have the liar among them."""

    def tamper(step: str, client: int, what: Any) -> Any:
        return wrong_shares(what, 10) if step == "answer open" and client == 0 else what

    values = random_values(range(20))
    assert same(Cohort(described(range(20)), tamper).run(values), plain(values, range(20)))


@pytest.mark.parametrize("sealed", [{}, {"0": "00"}, {"9" * 4000: "00"}, {"0": 5, "2": [1]}])
def test_a_client_that_shares_with_some_only_is_left_out(sealed):
    """Otherwise those who hold nothing of it would refuse every list with its name."""
    values = random_values()
    cohort = Cohort(described(), lambda s, c, what: {"sealed": sealed} if (s, c) == ("answer shares", 1) else what)
    assert same(cohort.run(values), plain(values, [0, 2, 3, 4]))
    assert not cohort.refused


@pytest.mark.parametrize("what", [{"seeds": {"1": 5}, "secrets": {}}, {"seeds": "ab", "secrets": None}, {"seeds": {"9": "00"}}])
def test_odd_shares_are_none(what):
    values = random_values()
    cohort = Cohort(described(), lambda step, client, said: what if (step, client) == ("answer open", 1) else said)
    assert same(cohort.run(values), plain(values, range(5)))


def test_wrong_shares_of_too_many_give_no_sum():
    def tamper(step: str, client: int, what: Any) -> Any:
        return wrong_shares(what, 20 * client) if step == "answer open" and client in (1, 2) else what

    with pytest.raises(
        ClientError, match=r"Round 2: 5 clients have sent shares of a secret of client 0, which takes 4 that fit"
    ):
        Cohort(described(), tamper).run(random_values())


@pytest.mark.parametrize("step", ["answer keys", "answer shares", "answer list", "answer open"])
def test_an_answer_that_cannot_be_read_is_none(step):
    values = random_values()
    cohort = Cohort(described(), lambda s, client, what: {"keys": 3, "sealed": 4} if (s, client) == (step, 1) else what)
    delivered = [0, 2, 3, 4] if step in ("answer keys", "answer shares") else range(5)
    assert same(cohort.run(values), plain(values, delivered))


# ---------------------------------------------------------------- what a server sees


def test_a_message_looks_like_any():
    """Masked words are uniform modulo 2**64, and so is the difference of two attempts with equal updates."""
    sizes = {"state": 5000}
    description = described(range(3), sizes=sizes, grids={"state": Grid(((4000, 1.0), (1000, None)), 10.0)})
    values = torch.ones(5000, dtype=torch.float64)
    seen = []
    for _ in range(2):
        cohort = Cohort(description)
        cohort.round.begin()
        cohort.round.notes()
        client = cohort.clients[0]
        client.receive(description, unpacked(cohort.round.notes()[0]["sealed"]))
        own = Sums(grids=description.grids, for_masks=True)
        own.add("state", values, 1.0)
        seen.append(client.mask(to_words(own, description.layout, 3)))
    for words in (*seen, seen[0] - seen[1]):
        assert stats.kstest((words.double() / 2.0**63).numpy(), "uniform", (-1, 2)).pvalue > 1e-3
    assert abs(np.corrcoef(seen[0].double(), seen[1].double())[0, 1]) < 0.05


def test_two_inputs_of_equal_sum_look_alike_once_opened():
    """With the same keys, everything that the server can compute after opening is equal: the words of the sum, both limbs."""
    values = random_values(range(3))
    shift = torch.randn(43, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).mul(2**20).round().div(2**20)
    values = {k: one.mul(2**20).round().div(2**20) for k, one in values.items()}
    other = {0: values[0] + shift, 1: values[1] - shift / 2, 2: values[2]}
    totals = []
    for inputs in (values, other):
        cohort = Cohort(described(range(3)))
        cohort.draw = lambda client: lambda what: hash_of(f"{client} {what}")
        cohort.round.begin()
        sent = cohort.masked(inputs)
        total = cohort.description.layout.zeros()
        for words in sent.values():
            add_words(total, words, cohort.description.layout)
        cohort.round.open(total, [*sent], [*sent])
        totals.append(total)
    assert torch.equal(*totals)


def hash_of(text: str) -> bytes:
    import hashlib

    return hashlib.sha256(text.encode()).digest()


# ---------------------------------------------------------------- large cohorts


def test_in_a_large_cohort_each_shares_masks_with_few():
    """Of 1,000 clients each has 80 neighbours, mutually, and the ring cannot be chosen."""
    description = described(range(1000))
    neighbours = {client: set(description.neighbours(client)) for client in range(1000)}
    assert {len(others) for others in neighbours.values()} == {80}
    assert all(client in neighbours[other] for client, others in neighbours.items() for other in others)
    assert description.least(0) == 55
    assert described(range(1000), session="t").neighbours(0) != description.neighbours(0)
    assert len(described(range(100)).neighbours(0)) == 99


def test_the_list_is_signed_whatever_its_order():
    assert list_content([3, 1, 2], b"d") == list_content((1, 2, 3), b"d") != list_content([1, 2], b"d")
