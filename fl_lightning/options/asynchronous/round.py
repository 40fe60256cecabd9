"""Run asynchronous rounds: train their clients from their own starts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fl_lightning.clients.pool import Chain
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.options.asynchronous.jobs import JobsInProgress, start_vector
from fl_lightning.options.asynchronous.sampler import AsynchronousPlan
from fl_lightning.routes.base import Chains
from fl_lightning.server.round import FederationRound
from fl_lightning.types import ClientUpdate, Snapshot


def deliver(current: FederationRound, chains: Chains, in_progress: JobsInProgress) -> None:
    """Train the clients whose updates become a new model, by the model that they started from, the newest last.

    A task trains when its update arrives, not when it begins: the result is the same, and only start models must be kept.

    Args:
        current: the round.
        chains: its clients, each a chain of its own.
        in_progress: the tasks that have begun in earlier rounds.
    """
    current.begin(chains)
    assert isinstance(current.plan, AsynchronousPlan)
    starts, server = current.plan.starts, current.federation.server
    now = server.vector()
    for number in sorted(set(starts.values())):
        model, start = None, now
        if number < current.round_idx:
            held = in_progress.start_of(number, server)
            model, start = current.federation.publish(number, held.tensors), start_vector(held, server)
        take = partial(pass_on, current, start=start, now=now, staleness=current.round_idx - number)
        current.collect([chain for chain in chains if starts[chain[0]] == number], take, model)


def pass_on(current: FederationRound, chain: Chain, start: Tensor, now: Tensor, staleness: int) -> None:
    """Pass an update to the strategy, and let failures belong to this round, not to that of the start.

    Args:
        current: the round.
        chain: the client.
        start: the model that it started from, shape (d,).
        now: the current model, shape (d,).
        staleness: the number of models between the two.
    """
    failures = [replace(failure, round_idx=current.round_idx) for failure in chain.failures]
    rebased = partial(_rebased, current, start=start, now=now, staleness=staleness)
    current.receive(replace(chain, failures=failures), rebased)


def _rebased(current: FederationRound, update: ClientUpdate, start: Tensor, now: Tensor, staleness: int) -> ClientUpdate:
    """Return the update with its staleness, and with its change on top of the current model."""
    update = replace(update, round_idx=current.round_idx, staleness=staleness)
    if not staleness:
        return update
    sent, server = update.snapshot, current.federation.server
    keeps = current.federation.strategy.takes_stale_models
    vector = sent.vector if keeps else _on_top(sent.vector, start, now, server.num_parameters)
    return replace(update, model=Snapshot(vector, torch.maximum(sent.counters, server.counters())))


def _on_top(vector: Tensor, start: Tensor, now: Tensor, size: int) -> Tensor:
    """Return w_t plus the change of the parameters from the start. Buffers stay: sums of variances may be negative."""
    change = to_float64(vector[:size]) - to_float64(start[:size]).to(vector.device)
    moved = change + to_float64(now[:size]).to(vector.device)
    return torch.cat([moved.to(vector), vector[size:]])
