"""Mask clients' updates where they train."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from fl_lightning.clients.judging import UpdateEditor
from fl_lightning.core.option import ClientContext, ClientHooks, SitePlace
from fl_lightning.errors import ConfigurationError, ProtocolError
from fl_lightning.functional.sums import Sums
from fl_lightning.functional.words import to_words, whole_to_words
from fl_lightning.messages import ClientTask
from fl_lightning.options.secure_aggregation import messages
from fl_lightning.options.secure_aggregation.checks import require_grids, require_round, require_same
from fl_lightning.options.secure_aggregation.client import MaskingClient
from fl_lightning.options.secure_aggregation.description import (
    RoundDescription,
    RoundTerms,
    digest_of_model,
    digest_of_sums,
    digest_of_task,
)
from fl_lightning.options.secure_aggregation.keys import KeyRing, key_from, openssh
from fl_lightning.options.secure_aggregation.record import SignedLists
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart, Snapshot

LOSS, EXAMPLES = "figure: loss", "figure: examples"
"""The sums of the training losses, weighted by examples, and of the examples behind them."""
_LARGEST = 2.0**40
_Known = TypeVar("_Known")


class MasksAtClients(ClientHooks):
    """Answer the server's requests, and mask updates.

    Args:
        context: the place where the clients train.
    """

    _editor: UpdateEditor

    def __init__(self, context: ClientContext) -> None:
        self._context, self._place = context, context.place
        self._lists: dict[bool, SignedLists] = {}  # by whether they are of whole numbers before round 0
        if self._place is not None:
            folder = self._place.folder
            self._lists = {False: SignedLists(folder), True: SignedLists(folder, "signed_sums.json")}
        self._clients: dict[int, MaskingClient] = {}  # those that have sent shares
        self._announced: dict[int, MaskingClient] = {}  # those that have announced keys, and no shares
        self._known: dict[Callable[[Any], Any], tuple[Any, Any]] = {}  # what was read last, by its reader
        self._identity: KeyRing | None = None
        self._strategy: RunningStrategy | None = None

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Take the model of the round."""
        self._editor, self._strategy = editor, None

    # ---------------------------------------------------------------- requests

    def answer(self, client: int, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a step of the round.

        Raises:
            ProtocolError: if this client does not take the step.
        """
        step = content.get("step")
        if step == messages.KEYS:
            return {"keys": self._keys(client, self._checked(client, self._read(RoundTerms.read_terms, content.get("terms"))))}
        if step == messages.SHARES:
            return {"sealed": self._shares(client, content.get("announced"))}
        masking = _of(client, self._clients)
        if step == messages.UPDATE:
            description = self._read(RoundDescription.read, content.get("description"))
            self._checked(client, description)
            masking.receive(description, messages.unpacked(content.get("sealed")))
            return {messages.WORDS: self._summand(masking)} if description.is_before else {}
        if step == messages.LIST:
            signature = self._signed(masking, content.get("delivered")).hex()
            ahead = {"keys": self._keys(client, masking.description.following)} if content.get("ahead") is True else {}
            return {"signature": signature, **ahead}
        if step == messages.OPEN:
            seeds, keys = masking.open(messages.unpacked(content.get("signatures")))
            return {
                "seeds": messages.packed(seeds),
                "secrets": messages.packed(keys),
                **self._shares_ahead(client, content.get("announced")),
            }
        raise ProtocolError("A round under masks has no such step.")

    def _read(self, read: Callable[[Any], _Known], values: Any) -> _Known:
        known = self._known.get(read)
        if known is None or known[0] != values:  # all clients of a simulation get the same
            self._known[read] = known = values, read(values)
        return known[1]

    def _checked(self, client: int, terms: RoundTerms) -> RoundTerms:
        """Return the terms of a round, and refuse one in which this client does not take part."""
        if client not in dict(terms.cohort):
            raise ProtocolError("The round under masks is for other clients.")
        if self._place is not None:
            require_round(terms, client, self._place)
            self._lists[terms.is_before].require_cohort(terms)
        self._identity = self._simulated(terms) if self._place is None else self._of_site(self._place)
        return terms

    def _keys(self, client: int, terms: RoundTerms) -> str:
        """Return new keys of a client, which wait for the round that they are for."""
        assert self._identity is not None
        draw = functools.partial(self._drawn, terms.terms, client)
        self._announced[client] = MaskingClient(client, terms, self._identity, draw)
        return messages.packed_announcement(self._announced[client].announce())

    def _shares(self, client: int, announced: Any) -> dict[str, str]:
        """Return the shares of a client that has announced its keys."""
        masking = _of(client, self._announced)
        peers = {other: messages.announcement_in(one) for other, one in messages.unpacked(announced).items()}
        sealed = masking.share(peers)
        self._clients[client] = self._announced.pop(client)
        return messages.packed(sealed)

    def _shares_ahead(self, client: int, announced: Any) -> dict[str, Any]:
        """Return a client's shares for the next round; none if a peer's keys are wrong, which must not harm this round."""
        if announced is not None:
            with suppress(ProtocolError):
                return {"sealed": self._shares(client, announced)}
        return {}

    def _of_site(self, place: SitePlace) -> KeyRing:
        if self._identity is None:
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key

            self._identity = KeyRing(load_ssh_private_key(place.key, None), place.peers)
        return self._identity

    def _simulated(self, terms: RoundTerms) -> KeyRing:
        """Return the keys of simulated clients: one process has them all, so that they may be one client's as well."""
        if self._identity is None or not {name for _, name in terms.cohort} <= set(self._identity.peers):
            key = key_from(self._hashed("identity"))
            self._identity = KeyRing(key, dict.fromkeys((name for _, name in terms.cohort), openssh(key)))
        return self._identity

    def _drawn(self, terms: bytes, client: int, what: str) -> bytes:
        """Return random bytes. Those of a simulated client are equal on all ranks, and when a simulation is repeated."""
        return self._hashed(f"{terms.hex()} {client} {what}") if self._place is None else secrets.token_bytes(32)

    def _hashed(self, what: str) -> bytes:
        return hashlib.sha256(f"fl_lightning {self._context.seed} {what}".encode()).digest()

    def _signed(self, masking: MaskingClient, delivered: Any) -> bytes:
        if not isinstance(delivered, list | tuple) or not all(type(one) is int for one in delivered):
            raise ProtocolError("The list of survivors cannot be read.")
        if self._place is not None and len(set(delivered)) < self._place.min_cohort:
            raise ProtocolError(
                f"The updates of {len(set(delivered))} sites would be added, but this site's 'policy.update.masks.least' is "
                f"{self._place.min_cohort}."
            )
        if self._place is None:
            masking.masked_elsewhere()
        signature = masking.agree(delivered)
        if self._place is not None:  # on the disk before the signature leaves
            description = masking.description
            most_lost = 0 if description.is_before else self._place.max_lost
            self._lists[description.is_before].sign(description, delivered, most_lost)
        return signature

    def _summand(self, masking: MaskingClient) -> Tensor:
        """Return the masked words of the whole numbers that a client adds to those of the others.

        Raises:
            ProtocolError: if the server asks for others.
        """
        description = masking.description
        require_same("list of sums", digest_of_sums(description.sizes), description.model)
        numbers = [number for what in sorted(description.sizes) for number in self._context.numbers(masking.client, what)]
        size = sum(description.sizes.values())
        if len(numbers) != size:
            raise ProtocolError(
                f"The server adds up {size} numbers of each client, but client {masking.client} has {len(numbers)}. The inputs "
                "of all need the same number of channels, which is 'model.network.num_features'."
            )
        return masking.mask(whole_to_words(numbers))

    # ---------------------------------------------------------------- updates

    def seal(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return what leaves instead of an update: the masked words of its part in each sum, and its counts of batches.

        Raises:
            ProtocolError: if the order is not what the round describes, or a number is outside the range of the sums.
        """
        masking, context, place = _of(update.client, self._clients), self._context, self._place
        description = masking.description
        if place is not None:
            self._require_order(task, description)
            update = replace(place.told(update), model=update.model, compressed=None)
        strategy = self._prepared_strategy(description)
        own = Sums(context.device, description.grids, for_masks=True)
        strategy.accumulate(update, own)
        loss = update.train_loss
        if loss is not None and math.isfinite(loss) and abs(loss) * update.num_examples < _LARGEST:
            own.add(LOSS, loss, update.num_examples)
            own.add(EXAMPLES, 1.0, update.num_examples)
        if place is not None:
            self._require_sums(description, strategy, update.num_examples, own)
        words = masking.mask(to_words(own, description.layout, len(description.cohort)))
        hides = place is not None and place.hides_steps
        snapshot = Snapshot(update.snapshot.vector[:0], self._editor.counters if hides else update.snapshot.counters)
        return ClientUpdate(
            update.client,
            update.round_idx,
            update.num_examples,
            update.num_steps,
            bytes_down=update.bytes_down,
            bytes_up=8 * len(words),
            model=snapshot,
            extras={messages.WORDS: words},
        )

    def _require_order(self, task: ClientTask, description: RoundDescription) -> None:
        """Refuse to send an update of another order or model than the one that the round describes."""
        model = self._editor.model
        require_same("session", model.session, description.session)
        require_same("model", digest_of_model(model), description.model)
        require_same("order", digest_of_task(task), description.work)
        require_same("round", {task.round_idx, model.round_idx}, {description.round_idx})

    def _require_sums(self, description: RoundDescription, strategy: RunningStrategy, examples: int, own: Sums) -> None:
        """Refuse other sums than the strategy's, and grids on which sites' numbers could vanish."""
        sizes = strategy.sum_sizes(self._editor.state.numel(), self._editor.size) or {}
        require_same("list of sums", {**sizes, LOSS: 1, EXAMPLES: 1}, description.sizes)
        require_grids(description.grids, strategy.grids([examples], self._editor.grid), own)

    def _prepared_strategy(self, description: RoundDescription) -> RunningStrategy:
        """Return a copy of the strategy that knows the round and is hidden from a server in this process."""
        if self._strategy is None:
            found = copy.copy(self._context.strategy)
            if not isinstance(found, RunningStrategy):
                raise ConfigurationError(f"{type(found).__name__} needs every client's model, so no sum is enough for it.")
            state, size = self._editor.state, self._editor.size
            found.start_round(RoundStart(description.round_idx, description.clients, self._context.num_clients, state, size))
            self._strategy = found
        return self._strategy


def _of(client: int, known: Mapping[int, MaskingClient]) -> MaskingClient:
    if client not in known:
        raise ProtocolError(
            "This client has no keys for the round; it may have been started again meanwhile. All clients announce new ones in "
            "the next round, or when the run is resumed (--ckpt_path last)."
        )
    return known[client]
