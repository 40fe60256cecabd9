"""The part of one client in a round under masks (Bonawitz et al. 2017, Figure 4, with the steps in bold)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from fl_lightning.errors import ProtocolError
from fl_lightning.functional.secret_sharing import PRIME, SHARE_BYTES, split_secret
from fl_lightning.options.secure_aggregation.description import RoundDescription, RoundTerms
from fl_lightning.options.secure_aggregation.keys import KeyRing, SecretKey, add_mask, commitment, derived, seal, unseal


@dataclass(frozen=True)
class Announcement:
    """Announce a client's keys of a round.

    Attributes:
        sealing: the public key for messages to the client, 32 bytes.
        masking: the public key for masks, 32 bytes.
        seed: the commitment to the seed of its own mask, 32 bytes.
        signature: the client's signature of these and of the round.
    """

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes

    def content(self, client: int, terms: bytes) -> bytes:
        """Return what is signed."""
        return terms + client.to_bytes(8, "big") + self.sealing + self.masking + self.seed


def list_content(delivered: Collection[int], digest: bytes) -> bytes:
    """Return what a client signs of the list of those whose updates are added."""
    return digest + hashlib.sha256(repr(sorted(delivered)).encode()).digest()


class MaskingClient:
    """Play the part of one client in one round. The steps follow each other once, and none can be repeated.

    Args:
        client: its id.
        terms: what is known of the round beforehand.
        identity: signs for it, and checks its peers' signatures.
        draw: returns 32 secret random bytes for a purpose.
    """

    description: RoundDescription
    """What it knows of the round, once it has been asked for its masked update."""

    def __init__(self, client: int, terms: RoundTerms, identity: KeyRing, draw: Callable[[str], bytes]) -> None:
        self.client, self._terms, self._identity, self._draw = client, terms, identity, draw
        self._names = dict(terms.cohort)
        self._neighbours, self._least = terms.neighbours(client), terms.least(client)
        self._step = 0
        self._sealing, self._secret, self._seed = SecretKey(draw("sealing")), draw("masking"), draw("seed")
        self._masking: SecretKey | None = SecretKey(self._secret)
        self._peers: Mapping[int, Announcement] = {}
        self._agreed: dict[int, bytes] = {}  # by client, for the messages between the two
        self._held: dict[int, tuple[bytes, bytes]] = {}  # by client: its shares of the seed and of the masking key
        self._delivered: frozenset[int] = frozenset()

    def _take(self, step: int, what: str) -> None:
        if self._step != step:
            raise ProtocolError(f"A server asks for the {what} of a round under masks once, and after the steps before it.")
        self._step += 1

    def _enough(self, clients: Collection[int], what: str) -> None:
        others = set(self._neighbours) & set(clients)
        if len(others) + 1 < self._least:
            raise ProtocolError(
                f"{self._terms.title}: {len(others) + 1} of {len(self._neighbours) + 1} clients {what}, but "
                f"removing the masks takes {self._least} or more."
            )

    # ---------------------------------------------------------------- keys and shares

    def announce(self) -> Announcement:
        """Return the keys of the round, which may not have begun (AdvertiseKeys)."""
        self._take(0, "keys")
        assert self._masking is not None
        bare = Announcement(self._sealing.public, self._masking.public, commitment(self._seed, self._terms.terms), b"")
        signature = self._identity.sign("keys", bare.content(self.client, self._terms.terms))
        return Announcement(bare.sealing, bare.masking, bare.seed, signature)

    def share(self, announced: Mapping[int, Announcement]) -> dict[int, bytes]:
        """Return the shares of this client's secrets, sealed for each neighbour that has announced keys (ShareKeys).

        Raises:
            ProtocolError: if a signature is wrong, a key appears twice, or too few have announced keys.
        """
        self._take(1, "shares")
        peers = {other: announced[other] for other in self._neighbours if other in announced}
        self._enough(peers, "have announced keys")
        for other, one in peers.items():
            self._identity.check(self._names[other], "keys", one.content(other, self._terms.terms), one.signature)
        keys = [key for one in peers.values() for key in (one.sealing, one.masking)]
        if len(set(keys)) < len(keys):
            raise ProtocolError("Two clients of a round under masks have announced the same key.")
        self._peers = peers
        holders = sorted([self.client, *peers])
        seeds, secrets = (self._split(secret, what, holders) for secret, what in ((self._seed, "b"), (self._secret, "s")))
        self._held[self.client] = seeds[self.client], secrets[self.client]
        return {
            other: seal(self._key(other, self.client, other), seeds[other] + secrets[other], self._context(self.client, other))
            for other in peers
        }

    def _split(self, secret: bytes, what: str, holders: list[int]) -> dict[int, bytes]:
        count = iter(range(self._least))

        def coefficient() -> int:  # 512 bits, so that the remainder is as good as uniform
            number = next(count)
            return int.from_bytes(self._draw(f"{what} {number}") + self._draw(f"{what} {number} low"), "big") % PRIME

        shares = split_secret(int.from_bytes(secret, "big"), self._least, holders, coefficient)
        return {holder: share.to_bytes(SHARE_BYTES, "big") for holder, share in shares.items()}

    def _context(self, sender: int, receiver: int) -> bytes:
        return self._terms.terms + sender.to_bytes(8, "big") + receiver.to_bytes(8, "big")

    def _key(self, other: int, sender: int, receiver: int) -> bytes:
        if other not in self._agreed:
            self._agreed[other] = self._sealing.agreed(self._peers[other].sealing)
        return derived(self._agreed[other], b"shares", self._context(sender, receiver))

    # ---------------------------------------------------------------- the masked update

    def receive(self, description: RoundDescription, sealed: Mapping[int, bytes]) -> None:
        """Take the description of the round, and the shares of the neighbours that take part.

        Raises:
            ProtocolError: if the round is another one, or if a share was changed, comes from somebody else, or there are too
                few.
        """
        if description.terms != self._terms.terms:
            raise ProtocolError("The round under masks is not the one for which this client has announced keys.")
        self._take(2, "masked update")
        self.description = description
        if not set(sealed) <= set(self._peers):
            raise ProtocolError("Shares come from a client that has announced no keys.")
        self._enough(sealed, "have sent shares")
        for other, message in sealed.items():
            context = self._context(other, self.client)
            content = unseal(self._key(other, other, self.client), message, context, self._names[other])
            self._held[other] = content[:SHARE_BYTES], content[SHARE_BYTES:]
        self._agreed.clear()

    def mask(self, words: Tensor) -> Tensor:
        """Mask the words of this client's update in place, and return them (MaskedInputCollection)."""
        self._take(3, "masked update")
        assert self._masking is not None
        layout, digest = self.description.layout, self.description.digest
        add_mask(words, own_mask(self._seed, digest), layout, 1)
        for other in self._held.keys() - {self.client}:
            key = common_mask(self._masking, self._peers[other].masking, digest)
            add_mask(words, key, layout, 1 if self.client < other else -1)
        self._seed = self._secret = b""  # others hold the shares
        self._masking = None
        return words

    def masked_elsewhere(self) -> None:
        """Learn that another rank of a simulation, which plays the same client, has masked its update."""
        self._step = max(self._step, 4)

    # ---------------------------------------------------------------- removing masks

    def agree(self, delivered: Collection[int]) -> bytes:
        """Return the signature of the list of those whose updates are added (ConsistencyCheck).

        Raises:
            ProtocolError: if it is not on the list, if there are too few, or one that has sent no shares.
        """
        self._take(4, "list of survivors")
        found = frozenset(delivered)
        if self.client not in found or not found <= set(self._names):
            raise ProtocolError("The list of survivors does not fit the round.")
        if found & (set(self._neighbours) - self._held.keys()):
            raise ProtocolError("The list of survivors names a client that has sent no shares.")
        self._enough(found, "are on the list of survivors")
        self._delivered = found
        return self._identity.sign("list", list_content(found, self.description.digest))

    def open(self, signatures: Mapping[int, bytes]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the shares that remove the masks (Unmasking): of the seeds of survivors, and of the keys of the others.

        Raises:
            ProtocolError: if too few have signed the same list.
        """
        self._take(5, "shares to remove masks")
        content = list_content(self._delivered, self.description.digest)
        signed = [
            other for other in signatures if other in self._delivered and self._has_signed(other, content, signatures[other])
        ]
        self._enough(signed, "have signed the list of survivors")
        held, self._held = self._held, {}
        seeds = {other: shares[0] for other, shares in held.items() if other in self._delivered}
        return seeds, {other: shares[1] for other, shares in held.items() if other not in self._delivered}

    def _has_signed(self, other: int, content: bytes, signature: bytes) -> bool:
        try:
            self._identity.check(self._names[other], "list", content, signature)
        except ProtocolError:  # of another list, or made up: one client must not be able to end the round of all
            return False
        return True


def own_mask(seed: bytes, digest: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return derived(seed, b"own mask", digest)


def common_mask(secret: SecretKey, public: bytes, digest: bytes) -> bytes:
    """Return the key of the mask that two clients share; one adds it, the other subtracts it."""
    return derived(secret.agreed(public), b"common mask", digest)
