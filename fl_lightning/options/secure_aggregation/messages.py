"""Write the messages of a round under masks as plain values: bytes as hexadecimal digits, ids of clients as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import ProtocolError
from fl_lightning.options.secure_aggregation.client import Announcement

KEYS, SHARES, UPDATE, LIST, OPEN = "keys", "shares", "update", "list", "open"
"""The steps, in order."""
WORDS = "words"
"""The name of the masked words among the tensors of an update, or in an answer."""


def packed(content: Mapping[int, bytes]) -> dict[str, str]:
    """Return bytes by client as plain values."""
    return {str(client): value.hex() for client, value in content.items()}


def unpacked(content: Any) -> dict[int, bytes]:
    """Return bytes by client.

    Raises:
        ProtocolError: if it is something else.
    """
    try:
        return {int(client): bytes.fromhex(value) for client, value in content.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError("A message of the round under masks cannot be read.") from error


def words_in(content: Any, count: int) -> Tensor:
    """Return masked words.

    Raises:
        ProtocolError: if there are others than so many, int64.
    """
    if not isinstance(content, Tensor) or content.dtype != torch.int64 or content.shape != (count,):
        raise ProtocolError("The masked words cannot be read.")
    return content


def packed_announcement(one: Announcement) -> str:
    """Return an announcement as text."""
    return (one.sealing + one.masking + one.seed + one.signature).hex()


def announcement_in(content: bytes) -> Announcement:
    """Return the announcement in bytes.

    Raises:
        ProtocolError: if it is too short.
    """
    if len(content) < 96:
        raise ProtocolError("An announcement of keys is too short.")
    return Announcement(content[:32], content[32:64], content[64:96], content[96:])
