"""Run asynchronous rounds: train their clients from their own starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fl_lightning.core.loop import ChainRun
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.messages import ClientTask
from fl_lightning.options.asynchronous.jobs import JobsInProgress, start_vector
from fl_lightning.options.asynchronous.sampler import AsynchronousPlan
from fl_lightning.routes.base import Chains
from fl_lightning.server.round import FederationRound
from fl_lightning.server.round_result import RoundResult
from fl_lightning.types import ClientUpdate, Snapshot


@dataclass
class AsynchronousRound(FederationRound):
    """Train the clients whose updates become a new model, each from its own start; see :class:`FederationRound`.

    A task trains when its update arrives, not when it begins: the result is the same, and only start models must be kept.

    Args:
        in_progress: the tasks that have begun in earlier rounds.
    """

    in_progress: JobsInProgress = field(default_factory=JobsInProgress)

    def deliver(self, chains: Chains) -> None:
        """Train the clients by the model that they started from, the newest last."""
        self._start_strategy([self.federation.data.num_examples(client) for (client,) in chains])
        self._chains = chains
        self._now = self._server.vector()
        starts = self._starts
        for start in sorted(set(starts.values())):
            self._version, self._start = None, self._now
            if start < self.round_idx:
                model = self.in_progress.start_of(start, self._server)
                self._version = self.federation.publish(start, model.tensors).version
                self._start = start_vector(model, self._server)
            error = self._deliver([chain for chain in chains if starts[chain[0]] == start])
            self._error = self._error or error
        if self.round_idx not in starts.values():
            self._version = None  # the clients have an earlier model

    @property
    def _starts(self) -> Mapping[int, int]:
        return self._events.starts

    @property
    def _events(self) -> AsynchronousPlan:
        assert isinstance(self.plan, AsynchronousPlan)
        return self.plan

    def _task(self, task: ClientTask) -> ClientTask:
        """Return a task that belongs to the round of its start."""
        start = self._starts[task.client]
        place = None if task.progress is None else replace(task.progress, turn=start)
        return super()._task(replace(task, round_idx=start, progress=place))

    def result(self) -> RoundResult:
        """Return the result of the round, and continue with the tasks after it."""
        result = super().result()
        self.in_progress.follow(self._events.queue, self.round_idx, self._server)
        return result

    def _receive(self, chain: ChainRun) -> None:
        """Let failures belong to this round, not to that of the start."""
        failures = [replace(failure, round_idx=self.round_idx) for failure in chain.failures]
        super()._receive(replace(chain, failures=failures))

    def _rebased(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update with its staleness, and with its change on top of the current model."""
        staleness = self.round_idx - self._starts[update.client]
        update = replace(update, round_idx=self.round_idx, staleness=staleness)
        if not staleness:
            return update
        sent = update.snapshot
        vector = sent.vector if self.federation.strategy.takes_stale_models else self._on_top(sent.vector)
        return replace(update, model=Snapshot(vector, torch.maximum(sent.counters, self._server.counters())))

    def _on_top(self, vector: Tensor) -> Tensor:
        """Return w_t plus the change of the parameters from the start. Buffers stay: sums of variances may be negative."""
        size = self._server.num_parameters
        change = to_float64(vector[:size]) - to_float64(self._start[:size]).to(vector.device)
        moved = change + to_float64(self._now[:size]).to(vector.device)
        return torch.cat([moved.to(vector), vector[size:]])
