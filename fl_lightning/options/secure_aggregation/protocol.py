"""The protocol of masks that cancel in the sum (Bonawitz et al. 2017), for clients and server of a simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.secret_sharing import (
    PRIME,
    SHARE_BYTES,
    agreed_key,
    join_shares,
    public_key,
    split_secret,
)
from fl_lightning.functional.seeding import derive_seed, generator
from fl_lightning.functional.sums import Sums


class MaskedRound:
    """Play the part of the clients and of the server in one round.

    Args:
        cohort: clients that have exchanged keys, in ascending order, including those that drop out later.
        threshold: number of clients that must deliver.
        seed: seed of the federation.
        round_idx: index of the round, from 0.
    """

    def __init__(self, cohort: tuple[int, ...], threshold: int, seed: int, round_idx: int) -> None:
        self.cohort, self.threshold = cohort, threshold
        self._seed, self._round_idx = seed, round_idx
        self._sizes: dict[str, int] = {}

    # ---------------------------------------------------------------- clients

    def mask(self, client: int, sums: Sums) -> None:
        """Mask a client's message in place.

        Raises:
            ConfigurationError: if it consists of other sums than those of earlier clients: the masks would not cancel.
        """
        self._sizes = self._sizes or sums.sizes()
        if sums.sizes() != self._sizes:
            raise ConfigurationError(
                f"'federation.secure_aggregation' needs the same sums from every client, but client {client} sends "
                f"{', '.join(sums.sizes())} and others send {', '.join(self._sizes)}, because the strategy gives some clients "
                "no weight. Use FedAvg, or remove 'federation.secure_aggregation'."
            )
        own, key = self._secret(client, "own mask"), self._secret(client, "key")
        pairs = {other: agreed_key(key, self._public[other]) for other in self.cohort if other != client}
        for name, integers in sums.masks():
            integers += _stream(own, name, integers)
            for other, agreed in pairs.items():
                integers.add_(_stream(agreed, name, integers), alpha=1 if client < other else -1)

    def bytes_up(self, sums: Sums) -> int:
        """Return the bytes of masked numbers, a public key, two shares per other client, and one about each to remove masks."""
        others = len(self.cohort) - 1
        return 16 * sum(sums.sizes().values()) + SHARE_BYTES * (1 + 2 * others + 1 + others)

    @property
    def bytes_down(self) -> int:
        """Return the bytes of the other clients' public keys and shares."""
        return 3 * SHARE_BYTES * (len(self.cohort) - 1)

    # ---------------------------------------------------------------- server

    def unmask(self, sums: Sums, delivered: Sequence[int], mine: Sequence[int]) -> None:
        """Remove the remaining masks from a sum over clients, in place.

        Args:
            sums: sum of the masked messages of ``mine``, or of more clients.
            delivered: all clients that delivered, on any rank.
            mine: clients whose masks are removed here.

        Raises:
            ClientError: if fewer than the threshold delivered.
        """
        if len(delivered) < self.threshold:
            raise ClientError(
                f"Round {self._round_idx}: {len(delivered)} of {len(self.cohort)} clients delivered, but removing the masks "
                f"takes {self.threshold} or more. Lower 'federation.secure_aggregation.threshold', or lose fewer clients "
                "('federation.faults.retries')."
            )
        helpers = sorted(delivered)[: self.threshold]
        keys = {gone: self._recovered(gone, "key", helpers) for gone in self.cohort if gone not in set(delivered)}
        for client in mine:
            own = self._recovered(client, "own mask", helpers)
            for name, integers in sums.masks():
                integers -= _stream(own, name, integers)
                for gone, key in keys.items():
                    agreed = agreed_key(key, self._public[client])
                    integers.add_(_stream(agreed, name, integers), alpha=-1 if client < gone else 1)

    # ---------------------------------------------------------------- keys

    @cached_property
    def _public(self) -> dict[int, int]:
        return {client: public_key(self._secret(client, "key")) for client in self.cohort}

    def _secret(self, client: int, what: str) -> int:
        """Draw a secret that only the client knows."""
        return random.Random(derive_seed(self._seed, self._round_idx, client, "secure aggregation", what)).randrange(1, PRIME)

    def _recovered(self, client: int, what: str, helpers: Sequence[int]) -> int:
        """Recover a client's secret from the shares that other clients hold."""
        draw = random.Random(derive_seed(self._seed, self._round_idx, client, "shares", what))
        shares = split_secret(self._secret(client, what), self.threshold, self.cohort, draw)
        return join_shares({helper: shares[helper] for helper in helpers})


def _stream(key: int, name: str, like: Tensor) -> Tensor:
    """Return integers modulo 2**64 drawn from a key, which look random without it."""
    draw = generator(key, name, "mask")
    return torch.empty(like.shape, dtype=torch.int64).random_(-(2**63), None, generator=draw).to(like.device)
