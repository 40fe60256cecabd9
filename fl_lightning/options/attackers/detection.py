"""How well the weights of a strategy separate attackers from honest clients."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fl_lightning.types import ClientUpdate


def detection(updates: Sequence[ClientUpdate], attackers: Collection[int]) -> dict[str, float]:
    """Return the figures of a round with attackers; empty without attackers, or on routes that do not weigh clients.

    Args:
        updates: updates of the round, with weights and shares.
        attackers: ids of all attackers.

    Returns:
        ``attackers``, their number; ``attacker_share``, the sum of their shares of the aggregate, in [0, 1];
        ``attacker_auroc``, if the round also has honest clients: the probability that a random attacker weighs less than a
        random honest client, with ties counting half (the area under the ROC curve of the weight as a test). 1 separates them
        perfectly, 0.5 is chance.
    """
    hostile = [update for update in updates if update.client in attackers]
    honest = [update for update in updates if update.client not in attackers]
    if not hostile or any(math.isnan(update.weight) for update in updates):
        return {}
    figures = {"attackers": float(len(hostile)), "attacker_share": sum(update.share for update in hostile)}
    if honest:
        pairs = [(bad.weight < good.weight) + 0.5 * (bad.weight == good.weight) for bad in hostile for good in honest]
        figures["attacker_auroc"] = sum(pairs) / len(pairs)
    return figures
