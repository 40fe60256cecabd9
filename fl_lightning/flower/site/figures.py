"""Keep at a site the figures that its policy does not let leave: of updates, of evaluations, and of what it tells first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fl_lightning.flower.site.policy import Policy
from fl_lightning.messages import ClientInfo, EvalReport, Part
from fl_lightning.types import ClientFailure, ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.flower.site.data import SiteData

LOSS = "train_loss"
"""The name in ``policy.metrics`` of the mean training loss, which every update has."""


def rounded(value: float, digits: int | None) -> float:
    """Return a figure to a number of significant digits; None for all."""
    return value if digits is None or not math.isfinite(value) else float(f"{value:.{digits - 1}e}")


def counted(number: int, policy: Policy) -> int:
    """Return a number of examples as the site tells it: rounded to multiples of ``min_examples``, if the policy says so."""
    step = policy.min_examples
    return number if policy.examples != "rounded" or not number else max(1, (number + step // 2) // step) * step


def update_to_send(update: ClientUpdate, policy: Policy) -> tuple[ClientUpdate, list[str]]:
    """Return an update with the figures that may leave, and the names of those that stay.

    With a required noise, no figure leaves that the noise does not cover.
    """

    def may_leave(name: str) -> bool:
        return policy.min_noise == 0 and (policy.metrics == "any" or name in policy.metrics)

    metrics = {name: rounded(value, policy.digits) for name, value in update.metrics.items() if may_leave(name)}
    kept = sorted(set(update.metrics) - set(metrics))
    loss = update.train_loss
    if loss is not None and not may_leave(LOSS):
        kept, loss = [*kept, LOSS], None
    local, of_global = (
        None if score is None or policy.min_noise > 0 else rounded(score, policy.digits)
        for score in (update.local_score, update.global_score)
    )
    sent = replace(
        update,
        model=update.model if update.compressed is None else None,
        num_examples=counted(update.num_examples, policy),
        train_loss=None if loss is None else rounded(loss, policy.digits),
        metrics=metrics,
        seconds=update.seconds if policy.seconds and policy.min_noise == 0 else 0.0,
        optimizer=update.optimizer if policy.optimizer else "",
        local_score=local,
        global_score=of_global,
    )
    return sent, kept


def report_to_send(report: EvalReport, policy: Policy) -> EvalReport:
    """Return the result of an evaluation as it may leave; sums tell exact numbers, so they need a policy that does."""
    digits, exact = policy.digits, policy.digits is None and policy.examples == "exact"
    interval = report.interval
    return replace(
        report,
        value=rounded(report.value, digits),
        n=counted(report.n, policy),
        interval=None if interval is None else (rounded(interval[0], digits), rounded(interval[1], digits)),
        points=tuple(_rounded(tensor, digits) for tensor in report.points),
        sums=report.sums if exact else {},
        pooled=report.pooled or ("" if exact else "exact sums do not leave this site ('policy.digits', 'policy.examples')"),
    )


def _rounded(tensor: torch.Tensor, digits: int | None) -> torch.Tensor:
    numbers = [rounded(value, digits) for value in tensor.flatten().tolist()]
    return torch.tensor(numbers, dtype=tensor.dtype).view(tensor.shape)


def info_to_tell(info: ClientInfo, policy: Policy, data: SiteData) -> tuple[ClientInfo, list[str]]:
    """Return what a site may tell about its data, and what it keeps because too few examples are behind it.

    A single count below the limit withholds the counts of all classes: with the number of examples, the others would tell it.

    Args:
        info: what the server would learn.
        policy: what the site allows.
        data: the site's data, for the numbers of persons.
    """
    least, kept = policy.min_examples, list[str]()
    parts: tuple[Part, ...] = ("validation", "test")
    small = {part for part in parts if 0 < data.units(part) < least}
    kept += [f"the {part} part, with fewer than {least} examples" for part in sorted(small)]
    counts, sampling = info.label_counts, info.sampling
    if sampling is not None and policy.examples == "rounded":  # an exact rate would tell the number of examples
        sampling = sampling[0], 2.0 ** -math.floor(-math.log2(sampling[1]))
    if policy.examples == "masked":  # a sum weighs by them; before it, the server only learns which parts there are
        hidden = replace(info, num_examples=1, label_counts=None, streams=True, sampling=None)
        parts_here = {"num_validation": min(1, info.num_validation), "num_test": min(1, info.num_test)}
        shown = tuple(part for part in info.evaluations if part not in small)
        return replace(hidden, **parts_here, evaluations=shown), kept  # type: ignore[arg-type]
    if counts is not None and any(0 < count < least for count in data.units_by_class()):
        kept, counts = [*kept, f"the counts of classes, of which one is below {least}"], None
    return (
        replace(
            info,
            num_examples=info.num_examples if info.streams else counted(info.num_examples, policy),
            sampling=sampling,
            label_counts=None if counts is None else tuple(counted(count, policy) for count in counts),
            num_validation=0 if "validation" in small else counted(info.num_validation, policy),
            num_test=0 if "test" in small else counted(info.num_test, policy),
            evaluations=tuple(part for part in info.evaluations if part not in small),
        ),
        kept,
    )


class Outgoing:
    """Keep back what a policy does not let leave, and tell the staff once what that is.

    Args:
        policy: what the site allows.
        say: prints a line for the site's staff.
    """

    def __init__(self, policy: Policy, say: Callable[[str], None]) -> None:
        self._policy, self._say = policy, say
        self._known, self._count = set[str](), 0

    def info(self, info: ClientInfo, data: SiteData) -> ClientInfo:
        """Return what the site may tell about its data; see :func:`info_to_tell`."""
        told, kept = info_to_tell(info, self._policy, data)
        self._note(kept)
        return told

    def result(self, result: ClientUpdate | ClientFailure | EvalReport) -> ClientUpdate | ClientFailure | EvalReport:
        """Return the result of an order as it may leave."""
        if isinstance(result, ClientFailure):
            return result
        if isinstance(result, EvalReport):
            return report_to_send(result, self._policy)
        sent, kept = update_to_send(result, self._policy)
        self._note(kept)
        self._count += len(kept)
        return sent

    def withheld(self) -> dict[str, int]:
        """Return for the log how many figures stayed since the last call; empty if none."""
        count, self._count = self._count, 0
        return {"figures_withheld": count} if count else {}

    def _note(self, kept: list[str]) -> None:
        new = [name for name in kept if name not in self._known]
        self._known.update(new)
        if new:
            self._say(f"Not sent, because of this site's policy: {', '.join(new)}.")
