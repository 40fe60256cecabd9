"""Keep on the disk what no restart may forget: the lists of survivors that a site signed, and the sum that a server opened.

A site signs one list for a model, so that no server gets two sums that differ in one site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.errors import ProtocolError
from fl_lightning.options.secure_aggregation.description import BEFORE, RoundDescription, RoundTerms
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.kept_file import read_kept
from fl_lightning.wire import from_bytes, to_bytes


class SignedLists:
    """Keep the lists in a file, over all federations.

    Args:
        folder: the site's folder.
        name: the name of the file.
    """

    def __init__(self, folder: Path, name: str = "signed_lists.json") -> None:
        self._path = folder / name

    def _read(self) -> dict[str, dict[str, Any]]:
        fix = "Restore it from a copy: it has the lists of sites that this one has signed."
        return {"models": {}, "federations": {}, "lists": {}} | read_kept(self._path, fix)

    def asked(self) -> tuple[list[str], list[str], list[str]]:
        """Return the sites of the last sum, those of one that was refused since, and those whose update both would show."""
        lists = self._read()["lists"]
        last, asked = lists.get("last", []), lists.get("asked", [])
        earlier = (set(last), set(lists.get("first", [])))  # the server has the sums of both
        return last, asked, sorted(set().union(*(before ^ set(asked) for before in earlier)))

    def agree(self, listed: Sequence[str]) -> None:
        """Agree to a sum over other sites; later ones are compared with it."""
        write_whole(self._path, json.dumps({**self._read(), "lists": {"first": listed, "last": listed}}).encode())

    def require_cohort(self, terms: RoundTerms) -> None:
        """Refuse another cohort than this federation's first one: two sums could differ in one site.

        Raises:
            ProtocolError: naming what has changed.
        """
        known = self._read()["federations"].get(terms.federation)
        if known is not None and known["cohort"] != _digest(terms.cohort):
            raise ProtocolError(
                "The sites of the round are others than before in this federation, so the difference of two sums could show "
                "one site's update. Let every round have all sites ('federation.clients_per_round': 1.0), and begin a new "
                "federation for other sites."
            )

    def sign(self, description: RoundDescription, delivered: Iterable[int], most_lost: int = 0) -> None:
        """Note a list before it is signed.

        Args:
            description: the round.
            delivered: the clients of the list.
            most_lost: how many sites a list may lack of the first that was signed.

        Raises:
            ProtocolError: if another list has been signed for the model, in any federation, or a later round in this one, or
                if a server could subtract the sum from another.
        """
        names = dict(description.cohort)  # a number may be another site's in another federation
        listed = sorted(names[client] for client in delivered)
        found, signed = self._read(), _digest(listed)
        known = found["models"].get(description.model)
        if known is not None and known != signed and description.is_before:
            raise ProtocolError(
                f"This site has signed another list of survivors for the {', '.join(description.sizes)}, and the difference of "
                "two totals could show one site's part. Have the sites of the earlier list answer, or begin with a model that "
                f"was measured. If the server may know the difference, the staff of these sites delete '{self._path}'."
            )
        if known is not None and known != signed:
            raise ProtocolError(
                "This site has signed another list of survivors for the same model, and the difference of two sums could show "
                "one site's update. Continue from a later checkpoint, or begin with other weights (another seed)."
            )
        federation = found["federations"].setdefault(
            description.federation, {"cohort": _digest(description.cohort), "round": BEFORE - 1}
        )
        if known is None and description.round_idx <= federation["round"]:
            raise ProtocolError(
                f"This site has signed the list of survivors of round {federation['round']} of this federation, so it signs "
                f"none of another model for round {description.round_idx}."
            )
        if known is None:  # the same list for the same model opens the same sum again
            self._take(found, listed, most_lost)
        federation["round"] = max(federation["round"], description.round_idx)
        found["models"][description.model] = signed
        write_whole(self._path, json.dumps(found).encode())

    def _take(self, found: dict[str, Any], listed: list[str], most_lost: int) -> None:
        """Note the sites of a sum; refuse one that shows more than the staff allows beside those before."""
        lists = found["lists"]
        if lists and (wrong := could_be_computed(lists, listed)) and (set(wrong) & set(listed) or len(wrong) > most_lost):
            write_whole(self._path, json.dumps({**found, "lists": {**lists, "asked": listed}}).encode())
            raise ProtocolError(
                f"The sum is over {', '.join(listed)}, but this site's update was in one over {', '.join(lists['last'])}. "
                f"A server that has both could compute the update of {', '.join(wrong)}, and 'policy.update.masks.lost' is "
                f"{most_lost}. Have the same sites take part. If this site's staff agrees to the other sum, it runs: "
                "fl-lightning site approve --sites"
            )
        found["lists"] = {"first": lists.get("first", listed), "last": listed}


def could_be_computed(lists: Mapping[str, Sequence[str]], listed: Sequence[str]) -> list[str]:
    """Return the sites whose update a server could compute from a sum over a list and the sums before.

    Two rounds begin with almost the same model if a server has all sites train at a tiny rate: then the difference of two sums
    is the update of the sites that are in one of them. So lists may only shrink: by ``first`` and ``last`` of those before.

    Args:
        lists: the names of the sites in the first sum and in the last one.
        listed: the names of the sites in the next one.

    Returns:
        The sites that are new; without such, those that are missing since the first.
    """
    return sorted(set(listed) - set(lists["last"])) or sorted(set(lists["first"]) - set(listed))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class OpenedSums:
    """Keep one sum of a federation, under the digest of the model from which its round began.

    Args:
        folder: the folder of the fit.
        federation: the id of the federation. Another fit in the folder may begin with the same model.
    """

    def __init__(self, folder: Path, federation: str) -> None:
        self._federation = federation
        self._path, self._name = folder / "opened_sum.bin", folder / "opened_sum.txt"

    def save(self, model: str, delivered: Sequence[int], words: Tensor) -> None:
        """Write a sum instead of the one before."""
        write_whole(self._path, to_bytes({"of": self._key(model), "delivered": sorted(delivered), "words": words}))
        write_whole(self._name, self._key(model).encode())  # so that other rounds need not read the sum

    def load(self, model: str) -> tuple[Tensor, tuple[int, ...]] | None:
        """Return the words of the sum of a model and the clients in it; None if another one was opened last."""
        if not self._name.exists() or self._name.read_text(encoding="utf-8") != self._key(model):
            return None
        found = from_bytes(self._path.read_bytes())
        return (found["words"], found["delivered"]) if found.get("of") == self._key(model) else None

    def clients(self) -> tuple[int, ...] | None:
        """Return the clients of the sum that this federation has opened last; None before the first."""
        if not self._name.exists() or not self._name.read_text(encoding="utf-8").startswith(self._key("")):
            return None
        return tuple(from_bytes(self._path.read_bytes())["delivered"])

    def _key(self, model: str) -> str:
        return f"{self._federation} {model}"
