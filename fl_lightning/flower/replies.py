"""Read what a site replies as if a stranger had sent it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.errors import WireError
from fl_lightning.flower.envelope import printable
from fl_lightning.flower.exchange import SiteError
from fl_lightning.flower.validation import require_message
from fl_lightning.functional.compression import misfit, restore
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.messages import ChainReport, ClientJob, EvalReport
from fl_lightning.types import ClientUpdate

_MOST_EXAMPLES = 2**40
"""The most training examples that a site may claim."""


def update_in(found: Mapping[str, Any], who: str, job: ClientJob, examples: int | None, check: UpdateCheck) -> ClientUpdate:
    """Return the update in a reply.

    Args:
        found: the contents of the reply.
        who: the site, for messages.
        job: the turn that the site was asked for.
        examples: the number of training examples that the site has told; None if it learns it in training.
        check: refuses updates that cannot be aggregated.

    Raises:
        ClientError: if it cannot be aggregated, or the site reports a failure.
    """
    replies = found.get("replies")
    try:
        (report,) = replies if isinstance(replies, tuple) else ()
        require_message(report, ChainReport)
    except (ValueError, WireError) as error:
        raise SiteError(who, f"its reply is not a report ({error}).") from error
    if report.failures:
        raise SiteError(who, printable(report.failures[0].cause), max(1, report.failures[0].attempts))
    if not report.updates:
        raise SiteError(who, "no update")
    (update,) = report.updates[-1:]
    update = _restored(update, who, check)
    _require_numbers(who, update)
    expected = (job.client, job.round_idx, update.num_examples if examples is None else examples)
    if update.model is None or (update.client, update.round_idx, update.num_examples) != expected:
        raise SiteError(who, "its update is for another client, round or number of examples.")
    _require_tensors(who, update, check.num_parameters)
    return check(update)


def evaluations_in(found: Mapping[str, Any], who: str, client: int, count: int) -> list[EvalReport]:
    """Return the results of evaluations in a reply.

    Raises:
        ClientError: if these are not ``count`` results of this client.
    """
    replies = found.get("replies")
    fits = isinstance(replies, tuple) and len(replies) == count
    if not fits or not all(type(r) is EvalReport and r.client == client for r in replies):  # type: ignore[union-attr]
        raise SiteError(who, "its reply is not a report of an evaluation.")
    return [EvalReport(client, float(one.value)) for one in replies]  # type: ignore[union-attr]


def _restored(update: ClientUpdate, who: str, check: UpdateCheck) -> ClientUpdate:
    """Return an update with its model, if it came compressed."""
    if update.compressed is None or update.model is not None:
        return replace(update, compressed=None)
    state = check.server_vector()
    size = check.num_parameters
    problem = misfit(update.compressed, size, state.numel() - size)
    if problem:
        raise SiteError(who, f"its compressed model does not fit: {problem}.")
    start = to_float64(state[:size])
    return replace(update, model=restore(update.compressed, start, state.dtype), compressed=None)


def _require_tensors(who: str, update: ClientUpdate, size: int) -> None:
    for name, tensor in update.extras.items():
        fits = tensor.numel() == size and tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
        if not fits:
            raise SiteError(who, f"'{name[:40]}' must be {size} finite numbers.")
    if update.snapshot.counters.dtype != torch.int64:
        raise SiteError(who, "its counters are not int64.")


def _require_numbers(who: str, update: ClientUpdate) -> None:
    """Refuse numbers by which a site could gain weight or end the run.

    Raises:
        ClientError: naming the number.
    """
    finite = {"local_score": update.local_score, "global_score": update.global_score, "seconds": update.seconds}
    broken = [name for name, value in finite.items() if value is not None and not math.isfinite(value)]
    broken += ["num_steps"] if update.num_steps < 0 else []
    broken += ["num_examples"] if not 0 < update.num_examples <= _MOST_EXAMPLES else []
    broken += ["normalizer"] if update.normalizer is not None and not 0 < update.normalizer < math.inf else []
    if broken:
        raise SiteError(who, f"'{broken[0]}' is outside its range.")
