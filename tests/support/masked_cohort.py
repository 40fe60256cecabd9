"""A round under masks in one process: clients with keys of their own, and the server's half."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric import ec

from fl_lightning.errors import ProtocolError
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import add_words, from_words, to_words
from fl_lightning.options.secure_aggregation.client import MaskingClient
from fl_lightning.options.secure_aggregation.description import RoundDescription, RoundTerms
from fl_lightning.options.secure_aggregation.keys import KeyRing, openssh
from fl_lightning.options.secure_aggregation.messages import announcement_in, packed, packed_announcement, unpacked
from fl_lightning.options.secure_aggregation.server import MaskedRound

GRIDS = {"state": Grid(((40, 1.0), (3, None)), 10.0), "weight": Grid(((1, None),), 10.0)}

PRIVATE = [ec.generate_private_key(ec.SECP384R1()) for _ in range(20)]

PUBLIC = {f"site {k}": openssh(key) for k, key in enumerate(PRIVATE)}


def described(clients: Any = range(5), **changes: Any) -> RoundDescription:
    values: dict[str, Any] = {
        "federation": "f",
        "contract": "c",
        "session": "s",
        "round_idx": 2,
        "cohort": tuple((k, f"site {k}") for k in clients),
        "threshold": 0.67,
        "model": "m",
        "work": "w",
        "sizes": {"state": 43, "weight": 1},
        "grids": GRIDS,
    }
    return RoundDescription(**{**values, **changes})


def random_bytes(what: str) -> bytes:
    return secrets.token_bytes(32)


class Cohort:
    """Clients with keys of their own, and the server's half; ``tamper`` changes what the server sends or gets."""

    def __init__(self, description: RoundDescription, tamper: Callable[[str, int, Any], Any] = lambda step, client, what: what):
        self.description, self.tamper = description, tamper
        self.clients: dict[int, MaskingClient] = {}
        self.refused: dict[int, str] = {}
        self.away: dict[str, set[int]] = {}  # the clients that do not answer a step
        self.draw: Callable[[int], Callable[[str], bytes]] = lambda client: random_bytes
        self.round = MaskedRound(description, self.ask)

    def ask(self, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        answers = {}
        for client, request in requests.items():
            step = request["step"]
            if client in self.away.get(step, ()):
                continue
            try:
                sent = self.tamper(step, client, request)
                answers[client] = self.tamper(f"answer {step}", client, self.answer(client, step, sent))
            except ProtocolError as error:
                self.refused[client] = str(error)
        return answers

    def answer(self, client: int, step: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if step == "keys":
            ring = KeyRing(PRIVATE[client], PUBLIC)
            seen = RoundTerms.read_terms(request["terms"])
            self.clients[client] = MaskingClient(client, seen, ring, self.draw(client))
            return {"keys": packed_announcement(self.clients[client].announce())}
        masking = self.clients[client]
        if step == "shares":
            announced = {k: announcement_in(one) for k, one in unpacked(request["announced"]).items()}
            return {"sealed": packed(masking.share(announced))}
        if step == "list":
            return {"signature": masking.agree(request["delivered"]).hex()}
        seeds, keys = masking.open(unpacked(request["signatures"]))
        return {"seeds": packed(seeds), "secrets": packed(keys)}

    def words(self, client: int, values: torch.Tensor) -> torch.Tensor:
        own = Sums(grids=GRIDS, for_masks=True)
        own.add("state", values, float(client + 1))
        own.add("weight", 1.0, float(client + 1))
        return to_words(own, self.description.layout, len(self.description.cohort))

    def masked(self, values: Mapping[int, torch.Tensor], lost: Any = ()) -> dict[int, torch.Tensor]:
        found = {}
        for client, note in self.round.notes().items():
            try:
                sent = self.tamper("update", client, note)
                self.clients[client].receive(RoundDescription.read(sent["description"]), unpacked(sent["sealed"]))
            except ProtocolError as error:
                self.refused[client] = str(error)
                continue
            if client not in lost:
                found[client] = self.clients[client].mask(self.words(client, values[client]))
        return found

    def run(self, values: Mapping[int, torch.Tensor], lost: Any = ()) -> Sums:
        self.round.begin()
        sent = self.masked(values, lost)
        return self.opened(sent)

    def opened(self, sent: Mapping[int, torch.Tensor]) -> Sums:
        layout = self.description.layout
        total = layout.zeros()
        for words in sent.values():
            add_words(total, words, layout)
        self.round.open(total, [*sent], [*sent])
        return from_words(total, layout)


def random_values(clients: Any = range(12)) -> dict[int, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {client: torch.randn(43, generator=draw, dtype=torch.float64) for client in clients}


def plain(values: Mapping[int, torch.Tensor], clients: Any) -> Sums:
    sums = Sums(grids=GRIDS)
    for client in clients:
        sums.add("state", values[client], float(client + 1))
        sums.add("weight", 1.0, float(client + 1))
    return sums


def same(one: Sums, other: Sums) -> bool:
    return torch.equal(one.value("state"), other.value("state")) and one.scalar("weight") == other.scalar("weight")


def changed(hexadecimal: str, place: int = 10) -> str:
    return hexadecimal[:place] + ("0" if hexadecimal[place] != "0" else "1") + hexadecimal[place + 1 :]


def wrong_shares(what: Any, place: int) -> Any:
    return {kind: {owner: changed(share, place) for owner, share in shares.items()} for kind, shares in what.items()}
