"""Keep in a site's folder what outlives a restart: what its staff agreed to, how often it has trained, and a client's state."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fl_lightning.errors import WireError
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.wire.transport import Content
from fl_lightning.utilities.atomic_file import PARTIAL, write_whole
from fl_lightning.utilities.kept_file import damaged, read_kept
from fl_lightning.wire import from_bytes, to_bytes

_FILE, _APPROVED, _ASKED = "record.json", "approved.json", "asked.json"
_MOST_ASKED, _LONGEST = 20, 2**20
_FIXES = {
    _FILE: "Restore it from a copy: it counts how often this site has trained.",
    _APPROVED: "Delete it: the staff then agrees again.",
    _ASKED: "Delete it: it has only what servers asked for.",
}
_NOT_AGREED = ("rounds", "num_clients", "numbers", "threads", "logger", "inference_mode", "trains")
"""The parts of a contract that may change within a federation: more rounds and sites, another machine. ``covers`` says whether
it trains."""


# ---------------------------------------------------------------- what a site agrees to


def settings_of(contract: Mapping[str, Any]) -> str:
    """Return as text what a site agrees to: what it covers, model, strategy, training, transforms, seed, precision."""
    agreed = {name: value for name, value in contract.items() if name not in _NOT_AGREED}
    return json.dumps({**agreed, "covers": covers(contract)}, sort_keys=True, default=str)


def covers(contract: Mapping[str, Any]) -> str:
    """Return in words what an agreement to a contract, which is not checked yet, covers."""
    federation = contract.get("federation")
    transforms = _setting(federation, "transforms")
    noisy = [one for one in transforms if _setting(one, "noise") == "local"] if isinstance(transforms, list | tuple) else []
    local = _arguments(_setting(federation, "local"))
    noises = [one for each in (*noisy, *local.values()) if isinstance(one := _setting(each, "noise_multiplier"), int | float)]
    masks = _setting(federation, "secure_aggregation") is not None
    return covered(contract.get("trains") is not False, masks, max(noises, default=0.0))


def covered(trains: bool, masks: bool, noise: float) -> str:
    """Return in words what settings let leave: an update with masks, or with noise of a multiplier, and figures."""
    if not trains:
        return "evaluate models, whose figures for this site alone leave it; not to train"
    if masks:
        return "train; the update leaves in masks, and no figure of this site alone"
    form = f"with noise of multiplier {noise:g}" if noise else "as it is"
    return f"train, and evaluate models; the update leaves {form}"


def _arguments(value: Any) -> Mapping[str, Any]:
    found = value.get("init_args", value) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _setting(value: Any, name: str) -> Any:
    return _arguments(value).get(name)


def digest_of(settings: str) -> str:
    """Return the digest of settings, by which the site's staff name them, 64 hexadecimal digits."""
    return hashlib.sha256(settings.encode()).hexdigest()


def whole_digest(contract: Mapping[str, Any]) -> str:
    """Return the digest of all settings that a server sends, 64 hexadecimal digits."""
    return digest_of(json.dumps(contract, sort_keys=True, default=str))


def _values(path: Path) -> dict[str, Any]:
    return read_kept(path, _FIXES.get(path.name, "Restore it from a copy."))


def asked(folder: Path, federation: str) -> str:
    """Return the settings of a federation that the site has not agreed to; empty if no server sent any."""
    return str(_values(folder / _ASKED).get(federation, ""))


def agreed(folder: Path, federation: str) -> str:
    """Return the settings of a federation that the site agreed to last; empty if it has agreed to none."""
    approved = _values(folder / _APPROVED).get(federation, "")
    return str(approved or _values(folder / _FILE).get("federations", {}).get(federation, {}).get("settings", ""))


def approve(folder: Path, federation: str, settings: str) -> None:
    """Keep the settings of a federation that the site's staff agreed to."""
    write_whole(folder / _APPROVED, json.dumps({**_values(folder / _APPROVED), federation: settings}).encode())


class SiteRecord:
    """Keep the record in a file of the site's folder, which outlives the state of federations.

    Args:
        folder: the site's folder.
        policy: what the site allows.
        name: the site's name, for messages.
    """

    def __init__(self, folder: Path, policy: Policy, name: str = "NAME") -> None:
        self._folder, self._policy, self._command = folder, policy, f"fl-lightning site approve --name {name}"
        self._known: dict[str, dict[str, Any]] = {}

    def _read(self) -> None:
        """Read the file again: the staff may have withdrawn in the meantime."""
        self._known = _values(self._folder / _FILE).get("federations", {})

    def _write(self) -> None:
        write_whole(self._folder / _FILE, json.dumps({"federations": self._known}).encode())

    def keep_once(self, kind: str, value: object, changed: str) -> None:
        """Keep a digest of what depends on the site's rows, the same for all federations.

        Args:
            kind: the name of the digest's file.
            value: what the site tells about its rows, or what a server says of them.
            changed: what it means if there was another one before.

        Raises:
            RefusedError: if there was another one before, naming the file.
        """
        path, digest = self._folder / f"{kind}.sha256", digest_of(json.dumps(value))
        if not path.exists():
            write_whole(path, digest.encode())
        if path.read_text(encoding="utf-8") != digest:
            raise RefusedError(f"{changed} If that is right, the site's staff delete '{path}'.")

    @contextmanager
    def admission(self, federation: str, contract: Mapping[str, Any]) -> Iterator[None]:
        """Take part in a federation with these settings, if the policy or the site's staff agrees and the block succeeds.

        A fit that the site refuses in the block for its other limits does not count as one in which it took part.

        Settings are compared as text: a server that writes two settings can find two with equal digests if these are short. An
        agreement to train covers the evaluation of the same settings, unless the update leaves in masks alone.

        Raises:
            RefusedError: naming the command by which the staff agrees.
            WireError: if the federation's id could name a place.
        """
        if not re.fullmatch(r"[0-9a-f]{32}", federation):
            raise WireError("The federation's id is not 32 hexadecimal digits.")
        self._read()
        known, limit, settings = self._known.get(federation, {}), self._policy.federations, settings_of(contract)
        enough = {settings}
        if not contract["trains"] and contract["federation"]["secure_aggregation"] is None:
            enough.add(settings_of({**contract, "trains": True}))
        kept: dict[str, Any] = {}
        if not known.keys() & {"withdrawn", "suspended"}:
            kept = {name: known[name] for name in ("settings", "evaluation") if name in known}
        if enough & set(kept.values()):
            yield
            return
        why = ""
        if "withdrawn" in known:
            why = f"This site has withdrawn from this federation on {known['withdrawn']}"
        elif "suspended" in known:
            why = "A training of this federation has failed here, and whether one fails may tell of single rows"
        elif limit != "any" and known:
            why = "The settings of this federation have changed since this site agreed to them"
        elif limit != "any" and len(self._known) >= limit:
            why = f"This site's 'policy.federations' is {limit}, and it has taken part in {len(self._known)}"
        if why and not self._is_approved(federation, settings):
            self._keep_asked(federation, settings)
            asks = f"The server asks to {covers(contract)}. If the site's staff agrees, it runs: {self._command}"
            raise RefusedError(f"{why}. {asks} {federation} {digest_of(settings)}")
        yield
        counts = {name: value for name, value in known.items() if name in ("since", "turns", "evaluations")}
        kept["settings" if contract["trains"] else "evaluation"] = settings
        self._known[federation] = {"since": _now(), "turns": 0, **counts, **kept}
        self._write()

    def _is_approved(self, federation: str, settings: str) -> bool:
        """Return whether the staff agreed to this federation, or to one with these settings whose fit was refused.

        A fit that is started again has a new id: one agreement is for one federation, whichever begins first.
        """
        approved = _values(self._folder / _APPROVED)
        if approved.get(federation) == settings:
            return True
        unused = [one for one, text in approved.items() if text == settings and one not in self._known]
        if federation in self._known or not unused:
            return False
        del approved[unused[0]]
        write_whole(self._folder / _APPROVED, json.dumps({**approved, federation: settings}).encode())
        return True

    def _keep_asked(self, federation: str, settings: str) -> None:
        """Keep settings for the staff to read: those of the last federations, so that no server can fill the disk."""
        before = _values(self._folder / _ASKED)
        if before.pop(federation, None) == settings:
            return
        if len(settings) > _LONGEST:
            raise RefusedError(f"The server's settings have {len(settings)} characters, but a site reads at most {_LONGEST}.")
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
            self._end(federation, suspended=True)
        self._write()
        return ends

    def _end(self, federation: str, **why: object) -> None:
        """Note why the site takes no further part, unless its staff agrees again."""
        self._known[federation] = {"since": _now(), "turns": 0, **self._known.get(federation, {}), **why}
        kept = {name: value for name, value in _values(self._folder / _APPROVED).items() if name != federation}
        write_whole(self._folder / _APPROVED, json.dumps(kept).encode())

    def count_orders(self, federation: str, turns: int, evaluations: int) -> None:
        """Count turns and evaluations that the server orders, before they begin.

        Raises:
            RefusedError: if the site has trained or evaluated as often as it allows, or has withdrawn.
        """
        self._read()
        known = self._known[federation]
        if "withdrawn" in known:
            raise RefusedError(f"This site has withdrawn from this federation on {known['withdrawn']}.")
        trained, evaluated = known["turns"], known.get("evaluations", 0)
        every = self._known.values()
        for what, done, more, name, limit in (
            ("trained", sum(one["turns"] for one in every), turns, "machine.trainings", self._policy.machine.trainings),
            ("evaluated models", sum(one.get("evaluations", 0) for one in every), evaluations, "answers", self._policy.answers),
        ):
            if done + more > limit:
                raise RefusedError(
                    f"This site has {what} {done} times in all federations, and its 'policy.{name}' is {limit}. Periods of a "
                    "round, and what is repeated after a restart of the server, count as well. Only the site can raise it."
                )
        if turns or evaluations:
            known |= {"turns": trained + turns, "evaluations": evaluated + evaluations}
            self._write()

    def withdraw(self, federation: str) -> bool:
        """Take no further part in a federation unless the staff agrees again, and return whether the site has taken part."""
        self._read()
        known = federation in self._known
        self._end(federation, withdrawn=_now())
        self._write()
        return known


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# ---------------------------------------------------------------- what the client keeps


class SiteStore:
    """Store the state of the client in one federation by round, and its last reply.

    Args:
        folder: the site's folder.
        federation: the id of the federation, which the server keeps in its checkpoints.
    """

    def __init__(self, folder: Path, federation: str) -> None:
        self._folder = folder / "federations" / federation
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A worker that is killed while it writes leaves such a file; a folder has only one worker.
        for left in self._folder.glob(PARTIAL.format(name="*", process="*")):
            left.unlink()
        for reply in self._folder.parent.glob("*/reply-*"):  # an order of another federation's fit is never repeated
            if reply.parent != self._folder:
                reply.unlink()
        self._written: Content | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the stored state, or None.

        Raises:
            ConfigurationError: if the file is damaged.
        """
        path = self._folder / "state.bin"
        if not path.exists():
            return None
        self._written = path.read_bytes()
        try:
            return dict(from_bytes(self._written))
        except (ValueError, WireError) as error:
            name = self._folder.name
            fix = f"Restore it from a copy, or run 'fl-lightning site withdraw' for {name} and agree again: it begins anew."
            raise damaged(path, fix) from error

    def save(self, state: dict[str, Any], key: str, reply: Content | None) -> None:
        """Store a state and the reply that belongs to it, at once: the state names the reply.

        Args:
            state: the state, as plain values and tensors.
            key: the digest of the request.
            reply: the reply, or None if the request must not be answered from the store.
        """
        if reply is not None:
            write_whole(self._folder / f"reply-{key}", reply)
        content = to_bytes({**state, "answered": key if reply is not None else ""})
        if content != self._written:
            write_whole(self._folder / "state.bin", content)
            self._written = content
        for old in self._folder.glob("reply-*"):  # after the state no longer names it
            if reply is None or old.name != f"reply-{key}":
                old.unlink()

    def reply(self, key: str) -> bytes | None:
        """Return the stored reply to a request, or None."""
        path = self._folder / f"reply-{key}"
        kept = self.load() if path.exists() else None
        return path.read_bytes() if kept is not None and kept.get("answered") == key else None
