"""Tell the sums of a client's inputs, from which the scale of all clients' inputs follows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule

from fl_lightning.data.input_statistics import input_moments, noisy_moments
from fl_lightning.data.schema import categories_of
from fl_lightning.errors import ClientError, add_note
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.small_counts import without_small
from fl_lightning.models.standardized import Standardized, standardized_parts

if TYPE_CHECKING:
    from fl_lightning.core.option import SitePlace
    from fl_lightning.data.federated import FederatedDataModule

INPUTS = "sums of the inputs"
"""The name of the counts, the totals and the totals of the squares of all channels, one after the other."""


def told_moments(data: FederatedDataModule, client: int, part: Standardized, seed: int) -> Moments:
    """Return the sums that a client of a simulation tells: with noise, or without those over few rows.

    Args:
        data: the data of all clients.
        client: the client.
        part: the part of the module whose inputs are measured.
        seed: the seed of the noise.
    """
    try:
        if part.epsilon is not None:
            draw = random.Random(derive_seed(seed, client, "noise of sums"))
            return noisy_moments(data, client, part.epsilon, draw.randrange)
        own = input_moments(data, client)
        return without_small(own, categories_of(data.datamodule, len(own.counts)), part.min_count)
    except Exception as error:
        add_note(error, f"In the statistics of client {data.client_name(client)}.")
        raise


def numbers_to_add(
    what: str, client: int, module: LightningModule, data: Any, seed: int, site: SitePlace | None
) -> tuple[int, ...]:
    """Return the whole numbers of a client that hooks add up; see ``ServerHooks.add_up``.

    Raises:
        ClientError: if there are none of this name.
        DataError: if a simulated client has another number of channels than the module.
    """
    if what != INPUTS:
        raise ClientError("The server adds up numbers that clients do not have.")
    if site is None:
        part = standardized_parts(module)[0]
        found = told_moments(data, client, part, seed)
        part.require_channels(found)
    else:
        found = site.moments()
    return (*found.counts, *found.totals, *found.squares)
