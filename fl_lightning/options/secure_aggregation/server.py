"""The server's part of a round under masks: it passes messages on, adds masked words, and removes what is left of the masks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from fl_lightning.errors import ClientError, ProtocolError
from fl_lightning.functional.secret_sharing import PRIME, join_shares
from fl_lightning.functional.words import add_words, words_to_whole
from fl_lightning.options.secure_aggregation import messages
from fl_lightning.options.secure_aggregation.client import Announcement, common_mask, own_mask
from fl_lightning.options.secure_aggregation.description import RoundDescription
from fl_lightning.options.secure_aggregation.keys import SecretKey, add_mask, commitment

Ask = Callable[[Mapping[int, Mapping[str, Any]]], Mapping[int, Mapping[str, Any]]]
"""Sends each client a request, and returns the answers of those that gave one."""
_Read = TypeVar("_Read")
_TRIES = 200
"""How many choices of shares to try before giving up on a secret of which some shares are wrong."""


class SharesAhead(NamedTuple):
    """Keys and shares of all clients for the next round, exchanged in the last two steps of a round.

    Attributes:
        terms: the digest of the terms that they are for.
        announced: the keys by client.
        sealed: the shares by sender, for each receiver.
    """

    terms: bytes
    announced: Mapping[int, Announcement]
    sealed: Mapping[int, Mapping[int, bytes]]


class MaskedRound:
    """Lead the clients through one round.

    Args:
        description: what all of them must see alike.
        ask: asks clients.
        ahead: the keys and shares that clients have exchanged already.
        looks_ahead: whether clients exchange those of the next round in the last two steps of this one.
    """

    def __init__(
        self, description: RoundDescription, ask: Ask, ahead: SharesAhead | None = None, looks_ahead: bool = False
    ) -> None:
        self.description, self._ask, self._looks_ahead = description, ask, looks_ahead
        self._given = ahead if ahead is not None and ahead.terms == description.terms else None
        self.ahead: SharesAhead | None = None
        self._announced: Mapping[int, Announcement] = {}
        self._sealed: Mapping[int, Mapping[int, bytes]] = {}  # by sender, for each receiver
        self._honest = set[int]()
        self.bytes_up, self.bytes_down = Counter[int](), Counter[int]()

    # ---------------------------------------------------------------- before the training

    def begin(self) -> None:
        """Collect the clients' keys and shares, unless they are known already.

        Raises:
            ClientError: if too few answer.
        """
        if self._given is not None:
            self._announced, self._sealed = self._given.announced, self._given.sealed
            return
        terms = self.description.plain_terms()
        replies = self._asked({client: {"step": messages.KEYS, "terms": terms} for client in self.description.clients})
        self._announced = _read_keys(replies)
        self._require(self._announced, "have announced keys")
        announced = self._to_each(self._announced)
        sent = self._asked({client: {"step": messages.SHARES, "announced": found} for client, found in announced.items()})
        self._sealed = self._whole_shares(sent, self._announced)
        self._require(self._sealed, "have sent shares")

    def _to_each(self, announced: Mapping[int, Announcement]) -> dict[int, dict[str, str]]:
        """Return what each client that has announced keys is told of those of its neighbours."""
        texts = {client: messages.packed_announcement(one) for client, one in announced.items()}
        around = self.description.neighbours
        return {client: {str(peer): texts[peer] for peer in around(client) if peer in texts} for client in texts}

    def _whole_shares(self, replies: Mapping[int, Any], announced: Collection[int]) -> dict[int, dict[int, bytes]]:
        """Return the shares of the clients that have sent one to each neighbour.

        The neighbours that one leaves out would not sign a list of survivors with its name.
        """
        found = _read(replies, lambda reply: messages.unpacked(reply["sealed"]))
        around = {client: set(self.description.neighbours(client)) & set(announced) for client in found}
        return {client: shares for client, shares in found.items() if shares.keys() >= around[client]}

    def notes(self) -> dict[int, dict[str, Any]]:
        """Return what each client that takes part must know before it masks its update."""
        found, plain = {}, self.description.plain()
        for client in self._sealed:
            senders = [other for other in self.description.neighbours(client) if other in self._sealed]
            shares = {other: self._sealed[other][client] for other in senders if client in self._sealed[other]}
            self.bytes_down[client] += sum(map(len, shares.values()))
            found[client] = {"step": messages.UPDATE, "description": plain, "sealed": messages.packed(shares)}
        return found

    # ---------------------------------------------------------------- after the training

    def add_up(self) -> list[int]:
        """Return the totals of whole numbers, for which no client trains.

        Raises:
            ClientError: if too few clients deliver or help; then nothing has been revealed.
        """
        self.begin()
        layout = self.description.layout
        sent = _read(self._asked(self.notes()), lambda found: messages.words_in(found[messages.WORDS], layout.words))
        total = layout.zeros()
        for words in sent.values():
            add_words(total, words, layout)
        self.open(total, sent, sent)
        return words_to_whole(total)

    def open(self, words: Tensor, delivered: Collection[int], mine: Iterable[int]) -> None:
        """Remove the masks that are left in a sum, in place.

        Args:
            words: the sum of the masked words of ``mine``.
            delivered: the clients whose updates are added, on any rank.
            mine: those of this rank.

        Raises:
            ClientError: if too few delivered or help, or if shares are wrong; then nothing has been revealed.
        """
        self._require(delivered, "delivered")
        named = sorted(delivered)
        ahead = self._looks_ahead
        replies = self._asked({client: {"step": messages.LIST, "delivered": named, "ahead": ahead} for client in named})
        signatures = _read(replies, lambda found: bytes.fromhex(found["signature"]))
        self._require(signatures, "have signed the list of survivors")
        requests, keys = {}, _read_keys(replies)
        told = self._to_each(keys) if keys.keys() == set(self.description.clients) else {}
        for client in signatures:
            own = {other: signatures[other] for other in self.description.neighbours(client) if other in signatures}
            requests[client] = {"step": messages.OPEN, "signatures": messages.packed(own), "announced": told.get(client)}
        helped = self._asked(requests)
        sealed = self._whole_shares(helped, keys)
        if told and sealed.keys() == keys.keys():  # otherwise all announce new keys, also those who were away
            self.ahead = SharesAhead(self.description.following.terms, keys, sealed)

        def of(what: str) -> dict[int, dict[int, bytes]]:
            return _by_owner(_read(helped, lambda found: messages.unpacked(found[what])))

        self._remove(words, mine, of("seeds"), of("secrets"), set(delivered))

    def _remove(
        self,
        words: Tensor,
        mine: Iterable[int],
        seeds: Mapping[int, dict[int, bytes]],
        secrets: Mapping[int, dict[int, bytes]],
        delivered: set[int],
    ) -> None:
        """Subtract the own masks of the clients of this rank, and the masks that they share with clients that are gone."""
        terms, digest, layout = self.description.terms, self.description.digest, self.description.layout
        known = dict[int, SecretKey]()
        for client in mine:
            told = self._announced[client].seed
            seed = self._recovered(client, seeds, lambda found, told=told: commitment(found, terms) == told)  # type: ignore[misc]
            add_mask(words, own_mask(seed, digest), layout, -1)
            for gone in self.description.neighbours(client):
                if gone in delivered or gone not in self._sealed:
                    continue
                if gone not in known:
                    public = self._announced[gone].masking
                    secret = self._recovered(gone, secrets, lambda found, told=public: SecretKey(found).public == told)  # type: ignore[misc]
                    known[gone] = SecretKey(secret)
                key = common_mask(known[gone], self._announced[client].masking, digest)
                add_mask(words, key, layout, -1 if client < gone else 1)

    def _recovered(self, client: int, shares: Mapping[int, dict[int, bytes]], fits: Callable[[bytes], bool]) -> bytes:
        """Return a client's secret from the shares of others, some of which may be wrong.

        Raises:
            ClientError: if it cannot be found.
        """
        held, least = shares.get(client, {}), self.description.least(client)
        sound = {holder: number for holder, share in held.items() if (number := int.from_bytes(share, "big")) < PRIME}
        for holders in self._choices(sorted(sound), least):
            secret = join_shares({holder: sound[holder] for holder in holders})
            if secret < 2**256 and fits(found := secret.to_bytes(32, "big")):
                self._honest = set(holders)
                return found
        raise ClientError(
            f"{self.description.title}: {len(held)} clients have sent shares of a secret of client {client}, which "
            f"takes {least} that fit. The masks cannot be removed; repeat the round."
        )

    def _choices(self, holders: list[int], least: int) -> Iterator[list[int]]:
        """Yield those whose shares to try: first those whose last ones fitted, then any, since a few may always lie."""
        draw = random.Random(0)
        yield sorted(holders, key=lambda holder: holder not in self._honest)[:least]
        if len(holders) > least:
            yield from (draw.sample(holders, least) for _ in range(_TRIES))

    def _require(self, clients: Collection[int], what: str) -> None:
        """Refuse to continue with fewer clients than are needed to remove the masks of each of them."""
        cohort, given = self.description.clients, set(clients)
        for client in given or cohort:
            around = {client, *self.description.neighbours(client)}
            there, least = len(around & given), self.description.least(client)
            if there < least:
                of = "" if len(around) == len(cohort) else f" next to client {client}"
                raise ClientError(
                    f"{self.description.title}: {there} of {len(around)} clients{of} {what}, but removing the masks "
                    f"takes {least} or more. Lower 'federation.secure_aggregation.threshold', or lose fewer clients "
                    "('federation.faults.retries')."
                )

    def _asked(self, requests: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
        answers = self._ask(requests)
        for client, request in requests.items():
            self.bytes_down[client] += _size(request)
            self.bytes_up[client] += _size(answers.get(client, {}))
        return answers


def _read(answers: Mapping[int, Mapping[str, Any]], read: Callable[[Any], _Read]) -> dict[int, _Read]:
    """Return the clients' answers as ``read`` parses them, and skip answers that it cannot parse."""
    found = {}
    for client, answer in answers.items():
        with suppress(ProtocolError, KeyError, TypeError, ValueError):
            found[client] = read(answer)
    return found


def _read_keys(answers: Mapping[int, Mapping[str, Any]]) -> dict[int, Announcement]:
    return _read(answers, lambda found: messages.announcement_in(bytes.fromhex(found["keys"])))


def _by_owner(helped: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
    """Return shares by the client whose secret they belong to, for each holder."""
    found: dict[int, dict[int, bytes]] = {}
    for holder, shares in helped.items():
        for owner, share in shares.items():
            found.setdefault(owner, {})[holder] = share
    return found


def _size(message: Mapping[str, Any]) -> int:
    """Return the bytes of keys, shares and signatures in a message."""
    found = 0
    for name, value in message.items():
        if isinstance(value, Mapping) and name not in ("description", "terms"):
            found += sum(len(str(text)) // 2 for text in value.values())
        elif name in ("keys", "signature"):
            found += len(str(value)) // 2
    return found
