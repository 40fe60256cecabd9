"""Errors for users. Each message says what is wrong, the value, and how to fix it.

The command line prints the message of any :class:`FederationError` without a traceback and exits with status 1.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any


class FederationError(Exception):
    """Base class of every error that the package raises on purpose."""


class ConfigurationError(FederationError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class EngineError(ConfigurationError):
    """A module or setting that this engine of local training cannot follow, and another one can."""


class DataError(FederationError, ValueError):
    """The data do not fit their use."""


class ClientError(FederationError, RuntimeError):
    """A client returned an update that cannot be aggregated."""


class ProtocolError(ClientError):
    """A message does not follow the protocol between a client and its peers; the text says nothing of the client's data."""


class RankError(FederationError, RuntimeError):
    """Another process of the run has ended."""


class CheckpointError(FederationError, RuntimeError):
    """A checkpoint is missing, unreadable, or belongs to another federation."""


class VersionError(FederationError, ImportError):
    """An installed release of another package lacks what a feature needs."""


class WireError(FederationError, ValueError):
    """Bytes between a server and its clients are not a message, or a value cannot be sent."""


def add_note(error: BaseException, note: str) -> None:
    """Add a sentence to an error, which its traceback shows; that of a file also gets it into its message.

    Args:
        error: any error, which keeps its type.
        note: the sentence, such as 'In round 0, client north.'
    """
    vars(error).setdefault("__notes__", []).append(note)  # as Python's own add_note, which 3.10 does not have
    if not isinstance(error, OSError):
        return
    inside = f" ({note[0].lower()}{note[1:].rstrip('.')})"
    if error.strerror is not None:
        error.strerror += inside
    elif error.args:
        error.args = (f"{error.args[0]}{inside}", *error.args[1:])


def notes_of(error: BaseException) -> list[str]:
    """Return the sentences that were added to an error."""
    return list(getattr(error, "__notes__", ()))


_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""A full disk, a file as large as it may be, and a used-up quota, which Windows does not have."""


def no_space(error: BaseException | None) -> FederationError | None:
    """Return a full disk, in a chain of causes, as an error for users; None if the chain has none."""
    while error is not None and not (isinstance(error, OSError) and error.errno in _FULL):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    target = f"'{error.filename2 or error.filename}'" if error.filename else "a file of the run"
    return FederationError(
        f"Cannot write {target} ({error.strerror}). Free some space, and run the command again; a fit that has saved a round "
        "resumes with '--ckpt_path last'."
    )


def require(condition: bool, setting: str, wanted: str, came: Any, hint: str = "") -> None:
    """Raise a :class:`ConfigurationError` that names the setting if ``condition`` is false.

    Args:
        condition: what must be true.
        setting: the name of the setting, as the user types it.
        wanted: what is allowed, in words.
        came: the value that was given.
        hint: what to write instead, as a sentence.

    Raises:
        ConfigurationError: if ``condition`` is false.
    """
    if not condition:
        raise ConfigurationError(f"'{setting}' must be {wanted}, but is {came!r}.{' ' if hint else ''}{hint}")


def require_counts(section: str, **counts: int) -> None:
    """Raise a :class:`ConfigurationError` for a number of things below 1.

    Args:
        section: what comes before the settings' names, such as ``model.network.``.
        counts: the numbers by the settings' names.

    Raises:
        ConfigurationError: naming the first one.
    """
    for name, count in counts.items():
        require(count >= 1, section + name, "1 or above", count)


def require_texts(setting: str, given: Iterable[Any]) -> None:
    """Raise a :class:`ConfigurationError` for a name that is not text: YAML reads 010 as 8, no as False and 12:30 as 750.

    Args:
        setting: the name of the setting, as the user types it.
        given: the names, such as those of clients, or a mapping from them.

    Raises:
        ConfigurationError: naming the first one.
    """
    for name in given:
        if not isinstance(name, str):
            raise ConfigurationError(
                f"'{setting}' has the name {name!r}, which is not text. Put quotes around it: YAML reads names such as 010, "
                "no and 12:30 as numbers and truth values."
            )


def share_hint(value: float, counts: bool = False) -> str:
    """Return what to write instead of a share above 1, as a sentence: percent as a share, or a number without its point.

    >>> share_hint(20), share_hint(2.0, counts=True)
    ('Write 0.2 for 20 %.', 'Write 2 for a number, or 0.02 for 2 %.')

    Args:
        value: the value that was given.
        counts: whether a whole number is allowed and means a number instead of a share.
    """
    if not 1 < value <= 100:
        return ""
    percent = f"{value / 100:g} for {value:g} %."
    return f"Write {int(value)} for a number, or {percent}" if counts and float(value).is_integer() else f"Write {percent}"


def require_same_shape(name: str, outputs: Sequence[int], target: Sequence[int]) -> None:
    """Raise a :class:`ConfigurationError` if the shapes of two compared tensors differ, which would broadcast them.

    Args:
        name: name of what compares them.
        outputs: shape of the outputs.
        target: shape of the targets.

    Raises:
        ConfigurationError: if they differ.
    """
    if tuple(outputs) != tuple(target):
        raise ConfigurationError(
            f"{name} needs outputs and targets of the same shape, but got {tuple(outputs)} and {tuple(target)}. Change the "
            "network so that its outputs have the targets' shape."
        )


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6, show: Callable[[str], str] = str) -> str:
    """Return ' Did you mean ...?' with the names nearest to a wrong one; empty if no name is near.

    Args:
        name: the wrong name.
        known: the existing names.
        cutoff: how similar a name must be, from 0 to 1.
        show: formats a name.
    """
    close = nearest(name, known, cutoff)
    if not close:
        return ""
    *first, last = map(show, close[:3])
    return f" Did you mean {' or '.join([', '.join(first), last] if first else [last])}?"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the names nearest to a wrong one, the best first; empty if no name is as similar as the cutoff, from 0 to 1."""
    wrong = name.lower()
    scores = {right: SequenceMatcher(None, right.lower(), wrong).ratio() for right in known}
    best = max(scores.values(), default=0.0)
    return sorted((right for right in scores if scores[right] >= max(cutoff, best - 0.08)), key=lambda right: -scores[right])
