"""Check the aggregate of a round, and apply the server's transforms to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import magnitude, to_float64
from fl_lightning.functional.returned import require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.server.checks.ranks import require_same_state
from fl_lightning.server.federation import Federation
from fl_lightning.strategies.base import JointStrategy
from fl_lightning.transforms.base import Transform


def finalize_aggregate(parts: Federation, round_idx: int, aggregate: Tensor, received: int, expected: int) -> Tensor:
    """Return the transformed aggregate of a round, float64, shape (d,), the same on every rank.

    Args:
        parts: the parts of the federation.
        round_idx: the communication round, from 0.
        aggregate: the strategy's result, shape (d,).
        received: the number of updates in it.
        expected: the number of expected updates.

    Raises:
        ConfigurationError: if the strategy or a transform returned another shape or dtype, or if ranks differ.
        ClientError: if the result is not finite.
    """
    method = "combine" if isinstance(parts.strategy, JointStrategy) else "aggregate"
    source = f"{type(parts.strategy).__name__}.{method}"
    remedy = "Return one number for each number of 'update.state', computed in float64 ('update.state.double()')."
    require_vector(aggregate, parts.server.size, f"{source} returned", remedy, torch.float64)
    require_same_state(parts.comm, aggregate, source, round_idx)
    size = parts.server.num_parameters
    start: Tensor | None = None
    for number, transform in enumerate(parts.transforms):
        if type(transform).receive is Transform.receive:  # the default does nothing: skip it to avoid rounding
            continue
        start = to_float64(parts.server.vector()[:size]) if start is None else start
        draw = generator(parts.seed, round_idx, "server", "transform", number)
        secret = parts.secret.stream(f"transform {number}", round_idx)
        changed = transform.receive(aggregate[:size] - start.to(aggregate), received, expected, draw, secret)
        remedy = "Return one number for each number of 'change', in float64."
        require_vector(changed, size, f"{type(transform).__name__}.receive returned", remedy, torch.float64)
        aggregate = torch.cat([start.to(changed) + changed, aggregate[size:]])
    if not math.isfinite(magnitude(aggregate)):
        raise ClientError(
            f"{type(parts.strategy).__name__} returned values that are not finite in round {round_idx}. Lower the clients' "
            "learning rate, or clip with 'federation.local.gradient_clip_val'."
        )
    return aggregate
