"""Record at a site what crosses its border, in lines that are chained so that a missing or changed one shows; and errors."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.errors import ConfigurationError, ProtocolError, WireError
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.release import FIELDS, numbers_of
from fl_lightning.flower.wire.transport import Content
from fl_lightning.flower.words import printable
from fl_lightning.messages import ClientTask, EvalOrder, Note

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

    Attributes:
        last: the digest of the last line, which the server keeps as a witness: whoever writes the log anew has another.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settings: set[str] = set()
        known = path.read_bytes() if path.exists() else b""
        self.last = digests(known)[-1]
        self._end = b"\n" if known and not known.endswith(b"\n") else b""  # of a line that was cut off

    def record(self, way: str, kind: str, content: Content, messages: Any, federation: object = "", **details: Any) -> None:
        """Append a line.

        Args:
            way: ``in`` or ``out``.
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
            "direction": way,
            "kind": kind,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            **details,
            "tensors": {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors_in(messages)},
            "previous": self.last,
            "random": secrets.token_hex(16),
        }
        text = json.dumps(line).encode()
        with open(self._path, "ab") as file:
            file.write(self._end + text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.last, self._end = hashlib.sha256(text).hexdigest(), b""

    def settings(self, digest: str, contract: Mapping[str, Any], federation: str) -> None:
        """Append the text of settings that the site has agreed to, once; those that it refuses could fill its disk."""
        if digest not in self._settings:
            text = json.dumps(contract, default=str)
            self.record("in", "settings", text.encode(), (), federation, settings=digest, text=text)
            self._settings.add(digest)


def digests(content: bytes) -> list[str]:
    """Return the digest before the first line, and those of all lines."""
    return [_START, *(hashlib.sha256(raw).hexdigest() for raw in content.splitlines())]


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the lines of a log, and the numbers of those before which a line is missing or changed, from 1.

    A line that a kill or a full disk cut off is of the kind :data:`CUT`; the next one has the digest of what is left of it.
    """
    content = path.read_bytes()
    found = list(map(_entry, content.splitlines()))
    chain = enumerate(zip(found, digests(content), strict=False), 1)
    broken = [number for number, (entry, before) in chain if entry is not None and entry.get("previous") != before]
    return [{"kind": CUT} if entry is None else entry for entry in found], broken


def _entry(raw: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(raw)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


class SiteErrors:
    """Tell errors by a code, under which the site's staff find the text in ``errors.log``.

    Args:
        folder: the site's folder.
        say: prints a line for the site's staff.
        uniform: whether to tell all errors alike, because their class may depend on single rows.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], uniform: bool) -> None:
        self._path, self._say, self._uniform = folder / "errors.log", say, uniform

    def told(self, error: BaseException) -> str:
        """Return what the server learns of an error.

        The text of an error is told only if it is about the server's own message, or one of a peer that it passed on.
        """
        if isinstance(error, RefusedError | WireError | ProtocolError):
            self._say(f"Refused: {error}")
            return f"{type(error).__name__}: {printable(error)}"
        return self.coded(error)

    def coded(self, error: BaseException) -> str:
        """Return a code, and write the error to the log under it."""
        kind, code = type(error).__name__, secrets.token_hex(4)
        name = "An error" if self._uniform else kind
        text = "".join(traceback.format_exception(error))
        lines = "\n".join(map(printable, text.splitlines()))
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"--- code {code}\n{lines}\n")
        except OSError as full:
            self._say(f"{kind} (code {code}): {error}. It cannot be written to errors.log: {full.strerror}.")
            return f"{name} (code {code})"
        self._say(f"{kind} (code {code}): {f'{error} ' if isinstance(error, ConfigurationError) else ''}See {self._path}.")
        return f"{name} (code {code}; its text is in the site's errors.log)"
