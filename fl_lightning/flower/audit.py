"""Record at a site what crosses its border."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor


def tensors_in(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a message by name."""
    if isinstance(value, Tensor):
        yield name, value
    elif is_dataclass(value):
        for one in fields(value):
            yield from tensors_in(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{number}]")


class AuditLog:
    """Append a line of JSON for each message: time, federation, direction, kind, bytes, digest, name and shape of each tensor.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, direction: str, kind: str, content: bytes, messages: Any, federation: object = "") -> None:
        """Append a line.

        Args:
            direction: ``in`` or ``out``.
            kind: the kind of the message.
            content: the bytes as they crossed the border.
            messages: the decoded messages.
            federation: the id of the federation that the server names.
        """
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "federation": str(federation)[:32],
            "direction": direction,
            "kind": kind,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "tensors": {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors_in(messages)},
        }
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
