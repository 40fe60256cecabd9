"""Generate random numbers that only the holder of a secret key can repeat: SHAKE-256 in place of torch's generators.

torch's CPU generator uses only 32 bits of a seed, so trying all of them reveals its whole output.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

KEY_BYTES = 32
_BLOCK = 2**16
"""Words of 64 bits that are hashed at once: 512 KiB, which fit into the cache."""


class SecretKey:
    """Hold a key of 32 bytes and generate its streams of random numbers. It cannot be pickled, so no checkpoint holds it.

    Args:
        key: the 32 bytes.

    Raises:
        ValueError: if the key has a different length.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"A key has {KEY_BYTES} bytes, not {len(key)}.")
        self._key = bytes(key)

    @classmethod
    def draw(cls) -> SecretKey:
        """Return a new key from the operating system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, *seeds: int) -> SecretKey:
        """Return the key derived from seeds: anyone who knows the seeds knows the key."""
        return cls(hashlib.shake_256(encode("noise seed", *seeds)).digest(KEY_BYTES))

    def reveal(self) -> bytes:
        """Return the key itself, to send it to another rank."""
        return self._key

    def stream(self, purpose: str, round_idx: int, client: int = -1, step: int = 0, attempt: int = 0) -> KeyedStream:
        """Return the random numbers for one purpose, independent of those for any other combination of arguments.

        Args:
            purpose: the purpose of the numbers.
            round_idx: the round, from 0.
            client: the client's id, or -1 for the server.
            step: the step of the client's training, from 0.
            attempt: the client's attempt in this round, from 0.
        """
        return KeyedStream(self._key, round_idx, client, step, attempt, purpose)

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def __copy__(self) -> SecretKey:
        return self

    def __deepcopy__(self, memo: Any) -> SecretKey:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("The key of privacy noise must not be in any file, so it cannot be pickled.")


class OneTimeKey(SecretKey):
    """Generate streams that never repeat, whatever they are asked for.

    A site uses it: a server that could make it draw the same noise twice, by repeating a round, could subtract the noise.
    """

    def __init__(self) -> None:
        super().__init__(secrets.token_bytes(KEY_BYTES))

    def stream(self, purpose: str, round_idx: int, client: int = -1, step: int = 0, attempt: int = 0) -> KeyedStream:
        """Return random numbers from a key of their own; see :meth:`SecretKey.stream`."""
        return SecretKey.draw().stream(purpose, round_idx, client, step, attempt)


class KeyedStream:
    """Generate random numbers from SHAKE-256 of a key and of their purpose; each call returns new ones.

    Block b of call c holds the words of 64 bits (little endian) of ``SHAKE-256(encode(key, *fields) || c || b)``, with c and b
    in 8 bytes, big endian. SHAKE-256 with the key in front is a pseudorandom function (Bertoni et al. 2011, Cryptographic
    sponge functions, section 5.11), as KMAC (NIST SP 800-185) is.

    Args:
        key: the secret bytes.
        fields: the purpose of the numbers.
    """

    def __init__(self, key: bytes, *fields: int | str) -> None:
        self._hash = hashlib.shake_256(encode(key, *fields))
        self._calls = 0

    def uniforms(self, count: int) -> Tensor:
        """Return numbers in [0, 1) in steps of 2^-53, float64, shape (count,)."""
        drawn = np.empty(count)
        for start, words in self._blocks(count):
            drawn[start : start + len(words)] = (words >> 11) * 2.0**-53
        return torch.from_numpy(drawn)

    def normals(self, count: int) -> Tensor:
        """Return standard normal numbers by Box and Muller (1958), float64, shape (count,); at most 8.6 in absolute value."""
        drawn = np.empty(count + count % 2)
        for start, words in self._blocks(len(drawn)):
            radii, angles = np.split((words >> 11).astype(np.float64), 2)
            radii = np.sqrt(-2 * np.log((radii + 1) * 2.0**-53))  # from (0, 1]: the logarithm is finite
            angles *= 2 * math.pi * 2.0**-53
            half = start + len(radii)
            drawn[start:half] = radii * np.cos(angles)
            drawn[half : half + len(radii)] = radii * np.sin(angles)
        return torch.from_numpy(drawn[:count])

    def permutation(self, count: int) -> list[int]:
        """Return 0 .. count - 1 in random order. Two equal words of 64 bits, which would favour an order, do not occur."""
        words = np.concatenate([words for _, words in self._blocks(count)]) if count else np.empty(0)
        order: list[int] = np.argsort(words, kind="stable").tolist()
        return order

    def integer(self) -> int:
        """Return a number of 63 bits."""
        (_, words), *_ = self._blocks(1)
        return int(words[0]) >> 1

    def _blocks(self, count: int) -> Iterator[tuple[int, Any]]:
        """Yield the words of the next call in blocks, each with its position."""
        call, self._calls = self._calls, self._calls + 1
        for number, start in enumerate(range(0, count, _BLOCK)):
            hashed = self._hash.copy()
            hashed.update(call.to_bytes(8, "big") + number.to_bytes(8, "big"))
            yield start, np.frombuffer(hashed.digest(8 * min(_BLOCK, count - start)), dtype="<u8")


def encode(*fields: bytes | int | str) -> bytes:
    """Return fields as bytes, each preceded by its type and length, so that different lists of fields never collide.

    >>> encode(1, "a").hex(" ")
    '69 00 00 00 00 00 00 00 01 31 73 00 00 00 00 00 00 00 01 61'
    """
    coded = bytearray()
    for field in fields:
        data = field if isinstance(field, bytes) else str(field).encode()
        coded += type(field).__name__[0].encode() + len(data).to_bytes(8, "big") + data
    return bytes(coded)
