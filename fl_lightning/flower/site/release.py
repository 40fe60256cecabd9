"""The only door out of a site: a table of every field of every message that may leave, which also words ``--check``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from fl_lightning.errors import WireError
from fl_lightning.flower.site.policy import FACTS, METRIC, Policy
from fl_lightning.messages import ClientInfo, EvalReport, Note
from fl_lightning.types import ClientFailure, ClientUpdate

_SIZES = "examples"
"""The fact that is told exact or rounded."""
_NO_SUMS = "exact sums do not leave this site ('policy.tells' without 'examples', or 'policy.digits')"
_ALWAYS = ""
"""The fact of what leaves with every message of its kind."""


def counted(number: int, policy: Policy) -> int:
    """Return a number of examples as the site tells it: rounded to multiples of ``min_rows``, unless it tells exact ones."""
    step = policy.min_rows
    return number if _SIZES in policy.told or not number else max(1, (number + step // 2) // step) * step


def rounded(value: Any, policy: Policy) -> Any:
    """Return a figure, or a tuple or tensor of figures, to the digits of the policy."""
    digits = policy.digits
    if digits is None or value is None:
        return value
    if isinstance(value, torch.Tensor):
        numbers = [rounded(one, policy) for one in value.flatten().tolist()]
        return torch.tensor(numbers, dtype=value.dtype).view(value.shape)
    if isinstance(value, tuple):
        return tuple(rounded(one, policy) for one in value)
    return float(f"{value:.{digits - 1}e}")


def _metrics(metrics: Mapping[str, float], policy: Policy) -> dict[str, float]:
    told = policy.told
    return {name: rounded(value, policy) for name, value in metrics.items() if "metrics" in told or f"{METRIC}{name}" in told}


def _sampling(sampling: tuple[int, float] | None, policy: Policy) -> tuple[int, float] | None:
    """Return the batches of an epoch; an exact rate would tell the number of examples."""
    exact = sampling is None or _SIZES in policy.told
    return sampling if exact else (sampling[0], 2.0 ** -math.floor(-math.log2(sampling[1])))  # type: ignore[index]


def _exact(policy: Policy) -> bool:
    """Return whether the sums of a metric's states may leave, which tell exact numbers."""
    return policy.digits is None and _SIZES in policy.told


@dataclass(frozen=True)
class Field:
    """Say when a field of a message may leave, and how.

    Attributes:
        fact: the name in ``policy.tells`` that lets it leave; empty if it always does.
        changed: returns the value as it leaves.
        untold: returns what leaves instead of a value that stays; by default the default of the message's class.
        is_model: whether it holds the update's tensors, which the log names by shape and digest alone.
    """

    fact: str = _ALWAYS
    changed: Callable[[Any, Policy], Any] = lambda value, policy: value
    untold: Callable[[Any], Any] | None = None
    is_model: bool = False

    def leaves(self, policy: Policy) -> bool:
        """Return whether the value leaves."""
        told = policy.told
        return self.fact == _ALWAYS or self.fact in told or (self.fact == _SIZES and "examples/rounded" in told)


_WEIGHS = ("num_examples", "num_steps", "normalizer")
"""The numbers by which strategies weigh or check an update, which are in a masked sum whatever the site tells."""
_HERE, _MODEL = Field(), Field(is_model=True)
FIELDS: dict[type, dict[str, Field]] = {
    ClientUpdate: {
        **dict.fromkeys(("client", "round_idx"), _HERE),
        **dict.fromkeys(("model", "extras", "compressed"), _MODEL),
        "num_examples": Field(_SIZES, counted, lambda number: 1),
        "num_steps": Field("steps", untold=lambda steps: 0),
        "train_loss": Field("loss", rounded),
        "metrics": Field(changed=_metrics),
        "normalizer": Field("normalizer", rounded),
        "local_score": Field("evaluation/validation", rounded),
        "global_score": Field("evaluation/training", rounded),
        "seconds": Field("seconds", rounded),
        "optimizer": Field("optimizer"),
    },
    EvalReport: {  # an order about a part that 'tells' does not name is refused before it is carried out
        **dict.fromkeys(("client", "reason"), _HERE),
        **dict.fromkeys(("value", "interval", "points"), Field(changed=rounded)),
        "n": Field(changed=counted),
        "sums": Field(changed=lambda sums, policy: sums if _exact(policy) else {}),
        "pooled": Field(changed=lambda why, policy: why or ("" if _exact(policy) else _NO_SUMS)),
    },
    ClientInfo: {
        **dict.fromkeys(("name", "digests", "schema"), _HERE),
        "num_examples": Field(_SIZES, counted, lambda number: 1),
        "num_validation": Field(_SIZES, counted, lambda number: min(1, number)),
        "num_test": Field(_SIZES, counted, lambda number: min(1, number)),
        "streams": Field(_SIZES, untold=lambda streams: True),  # as a site that learns its number in training
        "sampling": Field(_SIZES, _sampling),
        "label_counts": Field("label_counts", lambda counts, policy: counts and tuple(counted(one, policy) for one in counts)),
        "moments": Field("statistics"),
    },
    ClientFailure: dict.fromkeys(("client", "round_idx", "cause", "attempts"), _HERE),
    Note: {**dict.fromkeys(("option", "client"), _HERE), "content": _MODEL},  # keys, shares and sums of masks
}
"""Every message that leaves a site, by field. What is not in the table does not leave, and has its class's default instead."""


def released(message: Any, policy: Policy, summed: bool = False) -> Any:
    """Return a message as it may leave.

    Args:
        message: the message.
        policy: what the site allows.
        summed: whether it is about to be masked, for a sum over sites: then with the numbers by which a strategy weighs.

    Raises:
        WireError: for a message that is not in the table.
    """
    if type(message) not in FIELDS:
        raise WireError(f"A {type(message).__name__} is no message that leaves a site.")
    table, left = FIELDS[type(message)], dict[str, Any]()
    for one in fields(message):
        value, rule = getattr(message, one.name), table.get(one.name)
        if rule is not None and rule.leaves(policy):
            left[one.name] = rule.changed(value, policy)
        elif summed and one.name in _WEIGHS:
            left[one.name] = value
        elif rule is not None and rule.untold is not None:
            left[one.name] = rule.untold(value)
    if left.get("compressed") is not None:
        left["model"] = None
    return type(message)(**left)


def numbers_of(message: Any) -> dict[str, Any]:
    """Return all of a message that leaves but the update's tensors, as plain values."""
    table = FIELDS[type(message)]
    return {name: _plain(getattr(message, name)) for name, rule in table.items() if not rule.is_model}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def in_words(policy: Policy) -> list[str]:
    """Return what leaves a site in a federation with this policy, in sentences."""
    masked = policy.update.masks is not None
    form = "masked, in a sum with those of other sites" if masked else "plain: the server reads the model that the site trained"
    if policy.update.noise is not None:
        form = f"with noise of a multiplier of {policy.least_noise:g} or more, {'and masked' if masked else 'but not masked'}"
    elif not masked:
        form += ", and rows can be reconstructed from it"
    digits = f", to {policy.digits} digits" if policy.digits else ""
    told = [words for fact, words in FACTS.items() if fact in policy.told]
    told += [f"'{fact.removeprefix(METRIC)}' of each training" for fact in sorted(policy.told) if fact.startswith(METRIC)]
    lines = [f"the update leaves {form}", f"beside it leave {'; '.join(told) or 'no numbers'}{digits}"]
    return [*lines, "the loss and the sums of inputs leave in sums over sites only"] if masked else lines
