"""Compute digests of values in memory: equal contents give equal digests in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Digest:
    """Collect contents and reduce them to hexadecimal digits (BLAKE2b).

    Args:
        size: the bytes of the digest, each of two digits; 32 or more if somebody could look for equal ones.

    >>> one, other = Digest(), Digest()
    >>> one.add([torch.arange(3), "a"]) and other.add([torch.arange(3), "b"])
    True
    >>> one.text() == other.text()
    False
    """

    def __init__(self, size: int = 8) -> None:
        self._hash = hashlib.blake2b(digest_size=size)

    def add(self, value: Any) -> bool:
        """Add a value: tensors, arrays, images, plain values, and lists and dictionaries of them.

        Returns:
            Whether all of it could be read. For an unreadable part, only the type counts.
        """
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            self._tensor(value.detach())
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufcUSM":
            self._bytes(f"{value.dtype} {value.shape}", np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        elif isinstance(value, bytes | bytearray):
            self._bytes("bytes", value)
        elif value is None or isinstance(value, bool | int | float | complex | str | np.generic):
            self._bytes(type(value).__name__, str(value).encode())
        elif isinstance(value, Mapping):
            self._bytes(f"mapping {len(value)}", b"")
            return self._all([str(key), item] for key, item in value.items())
        elif isinstance(value, list | tuple):
            self._bytes(f"list {len(value)}", b"")
            return self._all(value)
        elif callable(getattr(value, "tobytes", None)):  # images of PIL
            self._bytes(f"{type(value).__name__} {getattr(value, 'size', '')}", value.tobytes())
        else:
            self._bytes(type(value).__qualname__, b"")
            return False
        return True

    def text(self) -> str:
        """Return the digest."""
        return self._hash.hexdigest()

    def _all(self, values: Iterable[Any]) -> bool:
        complete = [self.add(value) for value in values]  # all of them, even after an unreadable one
        return all(complete)

    def _tensor(self, value: Tensor) -> None:
        flat = value.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        self._bytes(f"{value.dtype} {tuple(value.shape)}", flat.view(torch.uint8).numpy())

    def _bytes(self, kind: str, content: Any) -> None:
        self._hash.update(f"{kind}\x1f".encode())
        if len(content):
            self._hash.update(memoryview(content).cast("B") if isinstance(content, bytes | bytearray) else content)


def digest(value: Any) -> str:
    """Return the digest of one value."""
    collected = Digest()
    collected.add(value)
    return collected.text()
