"""Secrets that so many holders know together and fewer do not (Shamir 1979), and keys that two agree on (Diffie, Hellman 1976).

The arithmetic is real, the group is a toy: this is for simulation, not for protection.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

PRIME = 2**127 - 1
"""Of the field and of the group; a secret is below it."""

_BASE = 3
SHARE_BYTES = 16
"""Of a share or a public key."""


def split_secret(secret: int, threshold: int, holders: Sequence[int], draw: random.Random) -> dict[int, int]:
    """Each holder's share: any ``threshold`` of them give the secret, fewer say nothing about it.

    Args:
        secret: from 0 to below :data:`PRIME`.
        threshold: from 1 to the number of holders.
        holders: distinct ids, >= 0.
        draw: of the polynomial's other coefficients.
    """
    coefficients = [secret, *(draw.randrange(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value
    return shares


def join_shares(shares: Mapping[int, int]) -> int:
    """The secret, from at least ``threshold`` shares."""
    points = {holder + 1: share for holder, share in shares.items()}
    secret = 0
    for x, share in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += share * above * pow(below, -1, PRIME)
    return secret % PRIME


def public_key(secret: int) -> int:
    """What everybody may know of a secret key."""
    return pow(_BASE, secret, PRIME)


def agreed_key(mine: int, theirs: int) -> int:
    """What the holder of one secret key and the holder of another both find, from each other's public keys."""
    return pow(theirs, mine, PRIME)
