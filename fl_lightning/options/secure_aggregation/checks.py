"""Refuse at a site a round under masks in which the sum could show its update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_lightning.core.option import SitePlace
from fl_lightning.errors import ProtocolError
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.options.secure_aggregation.description import COMPLETE, RoundTerms

_UNLIKE = 2.0**24
"""How much larger than this site's weight another one's may be; 25 bits of its own numbers are left then."""
_STEPS = 2.0**10
"""The least steps of a grid that a site's largest number takes."""


def require_round(terms: RoundTerms, client: int, place: SitePlace) -> None:
    """Refuse a round that does not meet this site's policy.

    Raises:
        ProtocolError: naming what does not fit.
    """
    require_same("federation", terms.federation, place.federation)
    require_same("settings", terms.contract, place.contract)
    names = dict(terms.cohort)
    if names[client] != place.name:
        raise ProtocolError("The round under masks calls this site by another name.")
    unknown = sorted(set(names.values()) - {*place.peers, place.name})
    if unknown:
        raise ProtocolError(
            f"The round has sites whose public keys this site does not have ('policy.update.masks.peers'): {unknown[0][:60]!r}."
        )
    if not place.min_cohort <= len(names) <= COMPLETE:
        raise ProtocolError(
            f"The round has {len(names)} sites, but must have {COMPLETE} at most, and at least this site's "
            f"'policy.update.masks.least' of {place.min_cohort}."
        )


def require_grids(grids: Mapping[str, Grid], mine: Mapping[str, Grid], sums: Sums) -> None:
    """Refuse grids so coarse that the numbers of some sites would vanish, and with them what hides the others'.

    Args:
        grids: the grids of the round.
        mine: those that this site would choose, of which others may have larger weights.
        sums: its part of the sums.

    Raises:
        ProtocolError: if a grid is another one.
    """
    sizes = sums.sizes()
    for name, grid in grids.items():
        if name in mine:
            own = mine[name]
            sound = (grid.pieces, grid.certain) == (own.pieces, own.certain) and grid.largest <= own.largest * _UNLIKE
        else:  # of a state that only the server has
            parts = sums.parts(name) if name in sizes else []
            sound = all(not part.bound or part.bound * 2.0**part.fraction >= _STEPS for part in parts)
        if not sound:
            raise ProtocolError(
                f"The grid of the sum '{name[:40]}' is too coarse for this site's numbers, or not the one that follows from "
                "the model, so some sites' numbers could vanish and no longer hide those of the others."
            )


def require_same(what: str, here: Any, there: Any) -> None:
    """Refuse what this site got if it differs from what all agreed on.

    Raises:
        ProtocolError: naming it.
    """
    if here != there:
        raise ProtocolError(
            f"The {what} that this site got differs from the one that all sites of the round under masks agreed on. With "
            "different ones, the server could tell the sites' updates apart."
        )
