"""Answer a server's first question: what a site's data are like, within its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fl_lightning.errors import WireError
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.figures import Outgoing
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.store import SiteRecord
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.messages import ClientInfo


class SiteDescription:
    """Describe the data, and tell sums and counts of rows only once.

    Args:
        name: the site's name.
        policy: what the site allows.
        record: keeps what was told.
        outgoing: keeps back what may not leave.
    """

    def __init__(self, name: str, policy: Policy, record: SiteRecord, outgoing: Outgoing) -> None:
        self._name, self._policy, self._record, self._outgoing = name, policy, record, outgoing

    def tell(self, asked: Mapping[str, Any], data: SiteData) -> ClientInfo:
        """Return the answer to a request.

        Raises:
            WireError: if the request is not one.
            RefusedError: if the data have changed since sums or counts were told.
        """
        names = [asked.get(kind) for kind in ("classes", "features")]
        for one in names:
            if not (one is None or (isinstance(one, tuple) and all(isinstance(name, str) for name in one))):
                raise WireError("The names of classes or features are no texts.")
        wanted = [asked.get(what, False) for what in ("statistics", "histograms", "summed")]
        if any(type(one) is not bool for one in wanted):
            raise WireError("The request does not say whether it asks for statistics and histograms.")
        info = self._outgoing.info(data.info(self._name, self._policy, names[0], names[1], *wanted), data)
        if info.moments:
            info = replace(info, moments=self._once(info.moments, data))
        once = {
            "histograms": "the counts of its bins",
            "label_counts": "the counts of its classes",
            "ranges": "the ranges of its features",
        }
        for name, what in once.items():
            if getattr(info, name) is not None:
                self._record.tell_once(name, what, getattr(info, name))
        return info

    def summand(self, data: SiteData) -> Moments:
        """Return the sums of the inputs, which leave in a sum over sites only.

        Raises:
            RefusedError: if the policy does not allow it, or the data have changed since sums were told.
        """
        found = data.moments(self._policy, summed=True)
        if found is None:
            raise RefusedError(
                "This site does not tell the sums of its inputs, also not in a sum over sites. Its staff set "
                "'policy.statistics' to true in its data.yaml; it tells none with 'policy.min_noise'."
            )
        return Moments.of_texts(self._once(found, data))

    def _once(self, moments: tuple[tuple[str, ...], ...], data: SiteData) -> tuple[tuple[str, ...], ...]:
        """Return what to tell of the sums of the inputs: always the same, from the same data."""
        if self._policy.statistics_epsilon is not None:
            return self._record.first_told(data.digest(), moments)
        self._record.tell_once("statistics", "the sums of its inputs", moments)
        return moments
