"""Put named bytes into records of Flower and take them out, in place of the arrays that Flower makes of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fl_lightning.compat.flower_objects import array_of

_SMALL = 1 << 20
"""The largest content, in bytes, that travels whole."""


def as_record(parts: Mapping[str, bytes | bytearray], array: Callable[[bytes | bytearray], Any] = array_of) -> Any:
    """Return named bytes as a record of Flower, one within it for each.

    A large content is an array, which Flower cuts into pieces of 5 MB; the SuperLink gets equal pieces once. A small one needs
    no object of its own: see :func:`~fl_lightning.compat.flower_objects.send`.

    Args:
        parts: the bytes by name.
        array: makes the array of a large content.
    """
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    def record(content: bytes | bytearray) -> Any:
        if len(content) <= _SMALL:
            return ConfigRecord({"bytes": bytes(content)})
        found = ArrayRecord()
        found["bytes"] = array(content)  # the constructor would copy it
        return found

    return RecordDict({name: record(content) for name, content in parts.items()})


def as_parts(record: Any) -> dict[str, bytes | bytearray]:
    """Return the named bytes of such a record.

    Raises:
        ValueError: if it holds anything else.
    """
    from flwr.app import ArrayRecord, ConfigRecord

    def content(one: Any) -> bytes | bytearray:
        found = None
        if isinstance(one, ArrayRecord) and list(one) == ["bytes"]:
            found = one["bytes"].data
        elif isinstance(one, ConfigRecord):
            found = one.get("bytes")
        if isinstance(found, bytes | bytearray):
            return found
        raise ValueError("The message holds something other than named bytes.")

    return {str(name): content(one) for name, one in record.items()}
