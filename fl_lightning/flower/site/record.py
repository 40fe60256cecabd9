"""Remember at a site, over all federations: its number, the federations that it agreed to, and how often it has trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.kept_file import read_kept

_FILE, _APPROVED, _ASKED = "record.json", "approved.json", "asked.json"
_MOST_ASKED, _LONGEST = 20, 2**20
_FIXES = {
    _FILE: "Restore it from a copy: it counts how often this site has trained.",
    _APPROVED: "Delete it: the staff then agrees again.",
    _ASKED: "Delete it: it has only what servers asked for.",
}
_NOT_AGREED = ("rounds", "num_clients", "numbers", "threads", "logger", "inference_mode")
"""The parts of a contract that may change within a federation: more rounds and sites, another machine."""


def settings_of(contract: Mapping[str, Any]) -> str:
    """Return as text the settings that a site agrees to: model, strategy, training, transforms, seed, precision."""
    agreed = {name: value for name, value in contract.items() if name not in _NOT_AGREED}
    return json.dumps(agreed, sort_keys=True, default=str)


def digest_of(settings: str) -> str:
    """Return the digest of settings, by which the site's staff name them, 64 hexadecimal digits."""
    return hashlib.sha256(settings.encode()).hexdigest()


def whole_digest(contract: Mapping[str, Any]) -> str:
    """Return the digest of all settings that a server sends, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(contract, sort_keys=True, default=str).encode()).hexdigest()


def _values(path: Path) -> dict[str, Any]:
    return read_kept(path, _FIXES.get(path.name, "Restore it from a copy."))


def asked(folder: Path, federation: str) -> str:
    """Return the settings of a federation that the site has not agreed to; empty if no server sent any."""
    return str(_values(folder / _ASKED).get(federation, ""))


def agreed(folder: Path, federation: str) -> str:
    """Return the settings of a federation that the site agreed to last; empty if it has agreed to none."""
    approved = _values(folder / _APPROVED).get(federation, "")
    return str(approved or _values(folder / _FILE).get("federations", {}).get(federation, {}).get("settings", ""))


def approve(folder: Path, federation: str, settings: str | int) -> None:
    """Keep what the site's staff agreed to: the settings of a federation; or, for ``number``, the site's number."""
    write_whole(folder / _APPROVED, json.dumps({**_values(folder / _APPROVED), federation: settings}).encode())


class SiteRecord:
    """Keep the record in a file of the site's folder, which outlives the state of federations.

    Args:
        folder: the site's folder.
        policy: what the site allows.
        name: the site's name, for messages.
    """

    def __init__(self, folder: Path, policy: Policy, name: str = "NAME") -> None:
        self._folder, self._policy, self._name = folder, policy, name
        self._number: int | None = None
        self._known: dict[str, dict[str, Any]] = {}

    def _read(self) -> None:
        """Read the file again: the staff may have withdrawn in the meantime."""
        found = _values(self._folder / _FILE)
        self._number, self._known = found.get("number"), found.get("federations", {})

    @property
    def _command(self) -> str:
        return f"fl-lightning site approve --name {self._name}"

    def _write(self) -> None:
        write_whole(self._folder / _FILE, json.dumps({"number": self._number, "federations": self._known}).encode())

    def tell_once(self, kind: str, what: str, told: Sequence[object]) -> None:
        """Keep a digest of what the site tells about its rows, once for all federations.

        Args:
            kind: the name of the digest's file.
            what: what is told, in words.
            told: the numbers.

        Raises:
            RefusedError: if others have been told before.
        """
        path = self._folder / f"{kind}.sha256"
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        if not path.exists():
            write_whole(path, digest.encode())
        _require_same(path, what, path.read_text(encoding="utf-8"), digest)

    def take_number(self, number: int) -> None:
        """Keep the number by which the server calls this site, from which its held-back rows follow.

        Raises:
            RefusedError: if the server changes it, which would let it see other rows.
        """
        self._read()
        if self._number not in (None, number) and number != _values(self._folder / _APPROVED).get("number"):
            raise RefusedError(
                f"The server calls this site client {number}, but it has been client {self._number}, and which rows it holds "
                f"back follows from the number. If that is right, the site runs: {self._command} --number {number}"
            )
        if self._number != number:
            self._number = number
            self._write()

    @contextmanager
    def admission(self, federation: str, settings: str) -> Iterator[None]:
        """Take part in a federation with these settings, if the policy or the site's staff agrees and the block succeeds.

        A fit that the site refuses in the block for its other limits does not count as one in which it took part.

        Settings are compared as text: a server that writes two settings can find two with equal digests if these are short.

        Raises:
            RefusedError: naming the command by which the staff agrees.
        """
        self._read()
        known, limit = self._known.get(federation), self._policy.federations
        if known is not None and known.get("settings") == settings and not known.keys() & {"withdrawn", "suspended"}:
            yield
            return
        why = ""
        if known is not None and "withdrawn" in known:
            why = f"This site has withdrawn from this federation on {known['withdrawn']}"
        elif known is not None and "suspended" in known:
            why = "A training of this federation has failed here, and whether one fails may tell of single rows"
        elif limit != "any" and known is not None:
            why = "The settings of this federation have changed since this site agreed to them"
        elif limit != "any" and len(self._known) >= limit:
            why = f"This site's 'policy.federations' is {limit}, and it has taken part in {len(self._known)}"
        if why and settings != _values(self._folder / _APPROVED).get(federation):
            self._keep_asked(federation, settings)
            raise RefusedError(f"{why}. If its staff agrees, it runs: {self._command} {federation} {digest_of(settings)}")
        yield
        kept = {name: value for name, value in (known or {}).items() if name in ("since", "turns", "evaluations")}
        self._known[federation] = {"since": _now(), "turns": 0, **kept, "settings": settings}
        self._write()

    def _keep_asked(self, federation: str, settings: str) -> None:
        """Keep settings for the staff to read: those of the last federations, so that no server can fill the disk."""
        before = _values(self._folder / _ASKED)
        if before.get(federation) == settings:
            return
        if len(settings) > _LONGEST:
            raise RefusedError(f"The server's settings have {len(settings)} characters, but a site reads at most {_LONGEST}.")
        before.pop(federation, None)
        kept = dict(list(before.items())[1 - _MOST_ASKED :])
        write_whole(self._folder / _ASKED, json.dumps({**kept, federation: settings}).encode())

    def note_failure(self, federation: str, most: int) -> bool:
        """Count a training that has failed; after too many, take no further part until the staff agrees again.

        Args:
            federation: its federation.
            most: how many it takes.

        Returns:
            Whether the site takes no further part.
        """
        self._read()
        known = self._known[federation]
        known["failures"] = known.get("failures", 0) + 1
        ends = bool(known["failures"] >= most)
        if ends:
            known["suspended"] = True
            self._withdraw_approvals(federation)
        self._write()
        return ends

    def _withdraw_approvals(self, federation: str) -> None:
        kept = {name: value for name, value in _values(self._folder / _APPROVED).items() if name != federation}
        write_whole(self._folder / _APPROVED, json.dumps(kept).encode())

    def count_orders(self, federation: str, turns: int, evaluations: int) -> None:
        """Count turns and evaluations that the server orders, before they begin.

        Raises:
            RefusedError: if the site has trained or evaluated as often as it allows, or has withdrawn.
        """
        self._read()
        if "withdrawn" in self._known[federation]:
            raise RefusedError(f"This site has withdrawn from this federation on {self._known[federation]['withdrawn']}.")
        before, evaluated = self._known[federation]["turns"], self._known[federation].get("evaluations", 0)
        total = sum(one["turns"] for one in self._known.values())
        all_evaluated = sum(one.get("evaluations", 0) for one in self._known.values())
        for what, done, more, name, limit in (
            ("trained", total, turns, "machine.trainings", self._policy.machine.trainings),
            ("evaluated models", all_evaluated, evaluations, "answers", self._policy.answers),
        ):
            if done + more > limit:
                raise RefusedError(
                    f"This site has {what} {done} times in all federations, and its 'policy.{name}' is {limit}. Periods of a "
                    "round, and what is repeated after a restart of the server, count as well. Only the site can raise it."
                )
        if turns or evaluations:
            self._known[federation] |= {"turns": before + turns, "evaluations": evaluated + evaluations}
            self._write()

    def withdraw(self, federation: str) -> bool:
        """Take no further part in a federation unless the staff agrees again, and return whether the site has taken part."""
        self._read()
        known = self._known.get(federation)
        self._known[federation] = {"since": _now(), "turns": 0, **(known or {}), "withdrawn": _now()}
        self._withdraw_approvals(federation)
        self._write()
        return known is not None


def _require_same(path: Path, what: str, before: str, now: str) -> None:
    if before != now:
        raise RefusedError(
            f"The data of this site have changed since it told {what}, and the difference of both would tell about the rows "
            f"that changed. If the server may know that, the site's staff delete '{path}'."
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
