"""Read what a site replies as if a stranger had sent it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fl_lightning.clients.judging import UpdateEditor
from fl_lightning.errors import ConfigurationError, WireError
from fl_lightning.flower.envelope import printable
from fl_lightning.flower.server.exchange import SiteError
from fl_lightning.flower.validation import require_message
from fl_lightning.functional.compression import misfit, restore
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientInfo, ClientTask, EvalReport, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot

_MOST_EXAMPLES = 2**36
"""The most training examples that a site may claim; larger weights cannot be summed exactly."""
_MOST_STEPS = 2**40
"""The most steps in a round that a site may claim."""
_LARGEST_EXTRA = 2.0**40
"""The largest number in an extra tensor; sums of larger ones are not exact, and end the run."""
_MOST_NUMBERS = 10**6
"""The most numbers in the answer to a question."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The types in which torch calculates; it stores others, of 8 bits, but does not add them."""


@dataclass(frozen=True)
class Needs:
    """Name what a strategy reads of every update, beside the model.

    Attributes:
        extras: the names of tensors in ``update.extras``.
        scores: the fields of the update that must not be None.
        sealed: whether an option's hooks read the update instead.
    """

    extras: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    sealed: bool = False


class UpdateReader:
    """Read updates of sites that trained one model.

    Args:
        state: a view of any copy of the module, of which only the layout is read.
        server: the global model of the round.
        needs: what the strategy reads.
    """

    def __init__(self, state: ModelState, server: ServerModel, needs: Needs) -> None:
        self._needs, self._editor = needs, UpdateEditor(state, server)
        parameters, floats, counters, local = state.names()
        self._size = state.num_parameters
        self._dtypes = [server.tensors[name].dtype for name in (*parameters, *floats)]
        self._counters = sum(server.tensors[name].numel() for name in counters)
        averaged = {*parameters, *floats, *counters, *local}
        self._frozen = {name: tensor for name, tensor in server.tensors.items() if name not in averaged}

    def update_in(self, found: Mapping[str, Any], who: str, task: ClientTask, examples: int | None) -> ClientUpdate:
        """Return the update in a reply. Of a sealed update, only the counters are checked, and no figure is kept.

        Args:
            found: the contents of the reply.
            who: the site, for messages.
            task: the turn that the site was asked for.
            examples: the number of training examples that the site has told; None if it learns it in training.

        Raises:
            ClientError: if it cannot be aggregated, or the site reports a failure.
        """
        sealed = self._needs.sealed
        update: ClientUpdate = reply_in(found, who, task.client, ClientUpdate)
        update = update if sealed else self._restored(update, who)
        _require_numbers(who, update)
        expected = task.round_idx, update.num_examples if examples is None else examples
        if update.model is None or (update.round_idx, update.num_examples) != expected:
            raise SiteError(who, "its update is for another round or number of examples.")
        counters = update.snapshot.counters
        if counters.dtype != torch.int64 or counters.shape != (self._counters,):
            came = f"{counters.dtype} of shape {tuple(counters.shape)}"
            raise SiteError(who, f"its counters are {came}, but must be {self._counters} of int64.")
        if sealed:
            return _bare(update)
        self._check_tensors(who, update)
        return self._editor.check(update)

    def _restored(self, update: ClientUpdate, who: str) -> ClientUpdate:
        """Return an update with its model, if it came compressed."""
        if update.compressed is None or update.model is not None:
            return replace(update, compressed=None)
        state, size = self._editor.state, self._size
        problem = misfit(update.compressed, size, state.numel() - size)
        if problem:
            raise SiteError(who, f"its compressed model does not fit: {problem}.")
        return replace(update, model=restore(update.compressed, state[:size], state.dtype), compressed=None)

    def _check_tensors(self, who: str, update: ClientUpdate) -> None:
        model = update.snapshot
        if self._dtypes and model.vector.dtype != (wanted := functools.reduce(torch.promote_types, self._dtypes)):
            raise SiteError(who, f"its model is {model.vector.dtype}, but must be {wanted}.")
        for name, tensor in model.moved.items():
            frozen = self._frozen.get(name)
            if frozen is None or tensor.shape != frozen.shape or tensor.dtype != frozen.dtype:
                raise SiteError(who, f"'{printable(name)[:40]}' is not a frozen tensor of the model, of its shape and type.")
        for name, tensor in update.extras.items():
            fits = tensor.shape == (self._size,) and tensor.dtype in _FLOATS
            if not fits or not magnitude(tensor) <= _LARGEST_EXTRA:  # NaN is not below it either
                raise SiteError(who, f"'{printable(name)[:40]}' must be {self._size} numbers up to 2**40.")
        missing = [name for name in self._needs.extras if name not in update.extras]
        missing += [name for name in self._needs.scores if getattr(update, name) is None]
        if missing:
            raise SiteError(who, f"its update lacks '{missing[0]}', which the strategy needs.")


def info_in(found: Mapping[str, Any], name: str) -> ClientInfo:
    """Return what a site tells about its data.

    Args:
        found: the contents of the reply.
        name: the registered name of the site.

    Raises:
        ConfigurationError: if it is not a description of this site, or has impossible counts.
    """
    info: Any = found.get("info")
    try:
        require_message(info, ClientInfo)
    except WireError as error:
        raise ConfigurationError(f"Site {name} does not describe its data: {error}") from error
    if info.name != name:
        raise ConfigurationError(f"Site {name} calls itself '{printable(info.name)[:60]}'. Start it with --name {name}.")
    if not info.num_examples:
        raise ConfigurationError(f"Site {name} has no training examples. Check the data.yaml there.")
    told = {"num_examples": info.num_examples, "num_validation": info.num_validation, "num_test": info.num_test}
    told |= {f"label_counts[{k}]": count for k, count in enumerate(info.label_counts or ())}
    broken = [which for which, count in told.items() if not 0 <= count <= _MOST_EXAMPLES]
    broken += ["digests"] if any(printable(text) != text for text in (*info.digests, info.schema)) else []
    batches, rate = info.sampling or (1, 1.0)
    broken += ["sampling"] if not (1 <= batches <= _MOST_EXAMPLES and 0 < rate <= 1) else []
    try:
        Moments.of_texts(info.moments or ((), (), ()))
    except ValueError as error:
        broken += [f"moments ({error})"]
    if broken:
        raise ConfigurationError(f"Site {name} tells impossible {broken[0]}. Check the data.yaml there, or update the site.")
    return info  # type: ignore[no-any-return]


def _bare(update: ClientUpdate) -> ClientUpdate:
    """Return a sealed update without any figure or tensor that a site may have sent beside it."""
    counts = update.num_examples, update.num_steps
    model = Snapshot(update.snapshot.vector[:0], update.snapshot.counters)
    return ClientUpdate(update.client, update.round_idx, *counts, model=model, extras=update.extras)


def reply_in(found: Mapping[str, Any], who: str, client: int, kind: type) -> Any:
    """Return the only message in a reply, which must be of a kind and of this client.

    Raises:
        ClientError: if it is not, or the site reports a failure.
    """
    (result,) = _replies_in(found, who, client, 1, kind, ClientFailure)
    if isinstance(result, ClientFailure):
        raise SiteError(who, printable(result.cause), max(1, result.attempts))
    return result


def _replies_in(found: Mapping[str, Any], who: str, client: int, count: int, *kinds: type) -> tuple[Any, ...]:
    replies, name = found.get("replies"), kinds[0].__name__
    if not isinstance(replies, tuple) or len(replies) != count:
        raise SiteError(who, f"its reply does not hold the expected {name}.")
    for one in replies:
        try:
            require_message(one, *kinds)
        except WireError as error:
            raise SiteError(who, f"its reply does not hold the expected {name} ({error}).") from error
        if one.client != client:
            raise SiteError(who, f"its {name} is of another client.")
    return replies


def evaluations_in(found: Mapping[str, Any], who: str, client: int, count: int) -> list[EvalReport]:
    """Return the results of evaluations in a reply.

    Raises:
        ClientError: if these are not ``count`` results of this client, or have impossible numbers, or text that could control
            the terminal.
    """
    reports: tuple[EvalReport, ...] = _replies_in(found, who, client, count, EvalReport)
    for report in reports:
        tensors = (*report.points, *report.sums.values())
        texts = (report.reason, report.pooled, *report.sums)
        if not 0 <= report.n <= _MOST_EXAMPLES or any(printable(text) != text for text in texts):
            raise SiteError(who, "its answer has an impossible number of examples, or text with control characters.")
        if any(t.dtype != torch.float64 for t in tensors) or sum(t.numel() for t in tensors) > _MOST_NUMBERS:
            raise SiteError(who, f"its answer has tensors other than float64, or more than {_MOST_NUMBERS} numbers.")
    return [replace(report, value=float(report.value)) for report in reports]


def _require_numbers(who: str, update: ClientUpdate) -> None:
    """Refuse numbers by which a site could gain weight or end the run, and names that could control the terminal.

    Raises:
        ClientError: naming the number or name.
    """
    finite = {"local_score": update.local_score, "global_score": update.global_score, "seconds": update.seconds}
    broken = [name for name, value in finite.items() if value is not None and not math.isfinite(value)]
    broken += ["num_steps"] if not 0 <= update.num_steps <= _MOST_STEPS else []
    broken += ["seconds"] if update.seconds < 0 else []
    broken += ["num_examples"] if not 0 < update.num_examples <= _MOST_EXAMPLES else []
    broken += ["normalizer"] if update.normalizer is not None and not 0 < update.normalizer < math.inf else []
    if broken:
        raise SiteError(who, f"'{broken[0]}' is outside its range.")
    if any(printable(text) != text for text in (update.optimizer, *update.metrics)):
        raise SiteError(who, "the name of its optimizer or of a metric has control characters or is too long.")
