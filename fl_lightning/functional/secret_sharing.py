"""Share secrets among holders (Shamir 1979), and agree on keys between two parties (Diffie, Hellman 1976).

The arithmetic is real, but the group is a toy: use it for simulation, not for protection.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

PRIME = 2**127 - 1
"""The prime of the field and of the group; secrets are below it."""

_BASE = 3
SHARE_BYTES = 16
"""The size of a share or a public key."""


def split_secret(secret: int, threshold: int, holders: Sequence[int], draw: random.Random) -> dict[int, int]:
    """Return each holder's share: any ``threshold`` of them reveal the secret, fewer reveal nothing.

    Args:
        secret: the secret, from 0 to below :data:`PRIME`.
        threshold: the number of shares needed, from 1 to the number of holders.
        holders: distinct ids, >= 0.
        draw: draws the polynomial's other coefficients.
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
    """Return the secret, from at least ``threshold`` shares."""
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
    """Return the public key of a secret key."""
    return pow(_BASE, secret, PRIME)


def agreed_key(mine: int, theirs: int) -> int:
    """Return the key that two parties share, from one's secret key and the other's public key."""
    return pow(theirs, mine, PRIME)
