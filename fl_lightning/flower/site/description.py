"""Answer a server's first question: what a site's data are like, within its policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_lightning.errors import WireError
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.release import released
from fl_lightning.flower.site.store import SiteRecord
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.messages import ClientInfo

_SUMS = "The data of this site have changed since it told {}, and the difference would tell about the rows that changed."


def described(asked: Mapping[str, Any], data: SiteData, name: str, policy: Policy, record: SiteRecord) -> ClientInfo:
    """Return what a site tells a server that asks about its data: sums and counts of rows only once.

    Args:
        asked: the request.
        data: the site's data.
        name: the site's name.
        policy: what the site allows.
        record: keeps what was told.

    Raises:
        WireError: if the request is not one.
        RefusedError: if the data have changed since sums or counts were told.
    """
    wanted = [asked.get(what, False) for what in ("statistics", "summed")]
    if any(type(one) is not bool for one in wanted):
        raise WireError("The request does not say whether it asks for statistics.")
    info: ClientInfo = released(data.info(name, policy, *wanted), policy)
    if info.moments:
        record.keep_once("statistics", info.moments, _SUMS.format("the sums of its inputs"))
    if info.label_counts is not None:
        record.keep_once("label_counts", info.label_counts, _SUMS.format("the counts of its classes"))
    return info


def summand(data: SiteData, policy: Policy, record: SiteRecord) -> Moments:
    """Return the sums of a site's inputs, which leave in a sum over sites only.

    Raises:
        RefusedError: if the policy does not allow it, or the data have changed since sums were told.
    """
    found = data.moments(policy, summed=True)
    if found is None:
        raise RefusedError(
            "This site does not tell the sums of its inputs, also not in a sum over sites. If its staff agrees, they add "
            "'statistics' to 'policy.tells' in data.yaml; with 'policy.update.noise' it tells none."
        )
    record.keep_once("statistics", found, _SUMS.format("the sums of its inputs"))
    return Moments.of_texts(found)
