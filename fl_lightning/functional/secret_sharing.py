"""Share secrets among holders (Shamir 1979), over a prime field that holds 256 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
"""The prime of the field, the smallest above 2**256."""
SHARE_BYTES = 33
"""The size of a share."""


def split_secret(secret: int, threshold: int, holders: Sequence[int], draw: Callable[[], int]) -> dict[int, int]:
    """Return each holder's share: any ``threshold`` of them reveal the secret, fewer reveal nothing.

    Args:
        secret: the secret, from 0 to below :data:`PRIME`.
        threshold: the number of shares needed, from 1 to the number of holders.
        holders: distinct ids, >= 0.
        draw: draws a number uniformly from the field, for the polynomial's other coefficients.
    """
    coefficients = [secret, *(draw() for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = value * (holder + 1) + coefficient
        shares[holder] = value % PRIME
    return shares


def join_shares(shares: Mapping[int, int]) -> int:
    """Return the secret, from at least ``threshold`` shares."""
    points = {holder + 1: share for holder, share in shares.items()}
    numerator, denominator = 0, 1  # one division at the end, which takes as long as 50 products
    for x, share in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        numerator, denominator = (numerator * below + share * above * denominator) % PRIME, denominator * below % PRIME
    return numerator * pow(denominator, -1, PRIME) % PRIME
