"""Record at a site what crosses its border, in lines that are chained so that a missing or changed one shows."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.flower.site.release import FIELDS, numbers_of
from fl_lightning.flower.wire.transport import Content
from fl_lightning.messages import ClientTask, EvalOrder, Note, OwnModelOrder

CUT = "cut off"
"""The kind of a line that cannot be read."""
_START = "0" * 64
"""The digest before the first line."""


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


def in_words(message: Any) -> dict[str, Any]:
    """Return what an order asks for, or all that leaves with an answer but the update's tensors, as plain values."""
    if isinstance(message, ClientTask):
        names = {"round": "round_idx", "period": "period", "epochs": "epochs"}
        return {"train": {word: getattr(message, name, None) for word, name in names.items()}}  # it is not checked yet
    if isinstance(message, EvalOrder):
        asked = {} if message.question is None else {"question": _question(message.question)}
        return {"evaluate": message.part, "metric": message.metric, "turns_alone": len(message.tasks), **asked}
    if isinstance(message, OwnModelOrder):
        return {"own_model": False}
    if isinstance(message, Note):
        step = message.content.get("step", "") if isinstance(message.content, Mapping) else ""
        return {"option": str(message.option)[:40], "step": str(step)[:20]}
    return {type(message).__name__: numbers_of(message)} if type(message) in FIELDS else {}


def _question(question: Any) -> dict[str, Any]:
    """Return a question, which is not checked yet, as text that cannot fill the log."""
    return {name: str(getattr(question, name, None))[:500] for name in ("metric", "resamples", "level")}


class AuditLog:
    """Append a line of JSON for each message.

    A line has the time, the federation, direction, kind, bytes and digest of the message, name and shape of each tensor, the
    details that :func:`in_words` returns, ``previous``, the digest of the line before, and a random text, so that nobody can
    guess from its own digest what else it says.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settings: set[str] = set()
        lines = path.read_bytes().splitlines() if path.exists() else []
        self._previous = hashlib.sha256(lines[-1]).hexdigest() if lines else _START
        self._complete = not lines or path.read_bytes().endswith(b"\n")

    @property
    def last(self) -> str:
        """Return the digest of the last line, which the server keeps as a witness: whoever writes the log anew has another."""
        return self._previous

    def record(
        self, direction: str, kind: str, content: Content, messages: Any, federation: object = "", **details: Any
    ) -> None:
        """Append a line.

        Args:
            direction: ``in`` or ``out``.
            kind: the kind of the message.
            content: the bytes as they crossed the border.
            messages: the decoded messages.
            federation: the id of the federation that the server names.
            details: further plain values.

        Raises:
            OSError: if the line cannot be written; then nothing must cross the border.
        """
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "federation": str(federation)[:32],
            "direction": direction,
            "kind": kind,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            **details,
            "tensors": {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors_in(messages)},
            "previous": self._previous,
            "random": secrets.token_hex(16),
        }
        text = json.dumps(line).encode()
        with open(self._path, "ab") as file:
            file.write((b"" if self._complete else b"\n") + text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._previous, self._complete = hashlib.sha256(text).hexdigest(), True

    def settings(self, digest: str, contract: Mapping[str, Any], federation: str) -> None:
        """Append the text of settings that the site has agreed to, once; those that it refuses could fill its disk."""
        if digest not in self._settings:
            text = json.dumps(contract, default=str)
            self.record("in", "settings", text.encode(), (), federation, settings=digest, text=text)
            self._settings.add(digest)


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the lines of a log, and the numbers of those before which a line is missing or changed, from 1.

    A line that a kill or a full disk cut off is of the kind :data:`CUT`; the next one has the digest of what is left of it.
    """
    entries, broken, previous = [], [], _START
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(raw)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            entry = {"kind": CUT, "previous": previous}
        if entry.get("previous") != previous:
            broken.append(number)
        previous = hashlib.sha256(raw).hexdigest()
        entries.append(entry)
    return entries, broken


def digests_in(path: Path) -> set[str]:
    """Return the digests of the lines of a log, and that before the first."""
    return {_START, *(hashlib.sha256(raw).hexdigest() for raw in path.read_bytes().splitlines())}
