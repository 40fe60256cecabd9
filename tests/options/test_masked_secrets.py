"""What a server can learn of a round under masks, and what is signed."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from masked_cohort import PRIVATE, PUBLIC, Cohort, described, random_bytes, random_values
from scipy import stats

from fl_lightning.errors import ClientError, ProtocolError
from fl_lightning.functional.secret_sharing import PRIME, join_shares
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import add_words, to_words
from fl_lightning.messages import ModelLayout, ServerModel
from fl_lightning.options.secure_aggregation.client import MaskingClient, common_mask, list_content, own_mask
from fl_lightning.options.secure_aggregation.description import RoundDescription, digest_of_model
from fl_lightning.options.secure_aggregation.keys import KeyRing, SecretKey, add_mask
from fl_lightning.options.secure_aggregation.messages import unpacked


def joined(held: list[Mapping[int, bytes]], owner: int) -> bytes:
    """Return the secret that the shares of clients 2 to 9 give."""
    shares = {client: int.from_bytes(found[owner], "big") for client, found in zip(range(2, 10), held, strict=True)}
    return join_shares(dict([*shares.items()][:7])).to_bytes(32, "big")


def is_noise(words: torch.Tensor) -> bool:
    """Return whether words look uniform modulo 2**64."""
    return bool(stats.kstest((words.double() / 2.0**63).numpy(), "uniform", (-1, 2)).pvalue > 1e-3)


def hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


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


PIECES = {"pieces": [[43, 1.0]], "largest": 1.0, "certain": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort": [[0, "a"], [0, "b"], [1, "c"]]},
        {"cohort": [[0, "a"], [1, "a"], [2, "c"]]},
        {"cohort": [[-1, "a"], [1, "b"], [2, "c"]]},
        {"cohort": [[PRIME - 1, "a"], [1, "b"], [2, "c"]]},
        {"threshold": 2.0},
        {"round_idx": float("nan")},
        {"round_idx": 2.5},
        {"round_idx": -1},
        {"session": 3},
        {"model": None},
        {"grids": {"state": {**PIECES, "largest": float("inf")}}},
        {"grids": {"state": {**PIECES, "pieces": [[43, float("nan")]]}}},
        {"grids": {"state": {**PIECES, "pieces": [[-1, 1.0], [44, 1.0]]}}},
        {"grids": {"state": {**PIECES, "pieces": [["x", 1]]}}},
        {"grids": {"other": {**PIECES, "pieces": [[1, 1.0]]}}},
        {"sizes": {"state": -1}},
        {"sizes": {"state": 44, "weight": 1}},
        {},
        None,
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(changes):
    with pytest.raises(ProtocolError, match="The description of the round under masks"):
        RoundDescription.read({**described().plain(), **changes} if changes else changes)


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
        assert is_noise(words)
    assert abs(np.corrcoef(seen[0].double(), seen[1].double())[0, 1]) < 0.05
