"""Run the rounds of a fit from top to bottom: draw the cohort, run the route, step the server, and log."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.federation import Federation
from fl_lightning.core.option import ServerHooks
from fl_lightning.core.plan import ClientSampler, RoundPlan
from fl_lightning.functional.pseudo_gradient import set_pseudo_gradient
from fl_lightning.functional.recycling import release_unused_memory
from fl_lightning.messages import ClientTask, Progress
from fl_lightning.reporting.rounds import MOST_COLUMNS, client_metrics, movement, quantiles, round_metrics
from fl_lightning.reporting.tables import write_matrix
from fl_lightning.server.checks.ranks import agree_on_buffers
from fl_lightning.server.round import FederationRound, announce, tell_failures
from fl_lightning.server.run_state import RunState, checkpoint_references
from fl_lightning.server.takeover import Termination, Untouched, outside_precision
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.strategies.base import JointStrategy
from fl_lightning.types import ClientUpdate, RoundResult
from fl_lightning.utilities.collectives import Collectives


@dataclass(eq=False)
class Rounds:
    """Run one round for each epoch of the user's Trainer.

    Args:
        settings: the settings of the federation.
        run_state: the state of the run.
        federation: the parts of the federation.
        sampler: the sampler that draws the rounds.
        termination: tells all ranks when one is told to end.
        untouched: refuses changes of the server's optimizer by anything but its own step.
        rounds: the number of rounds that have been run in this fit.
    """

    settings: FederationSettings
    run_state: RunState
    federation: Federation
    sampler: ClientSampler
    termination: Termination
    untouched: Untouched
    rounds: int = 0

    def __post_init__(self) -> None:
        self._hooks: list[ServerHooks] = [*self.run_state.hooks.values()]
        self._default_dtype = torch.get_default_dtype()
        self._warned_of_extension = False

    def run(self, module: LightningModule) -> None:
        """Run a round, after which the module contains the new global model."""
        federation, trainer = self.federation, self.federation.trainer
        self.rounds += 1
        self.untouched.check(trainer)
        self.termination.agree(federation.pool.comm, raises=True)
        with outside_precision(trainer, self._default_dtype):
            tasks = self._round(module, trainer.current_epoch)
            if not federation.pool.simulated:
                release_unused_memory()  # no client trains here, which would reuse it
            figures = {name: x for hook in self._hooks for name, x in hook.end_round(trainer.current_epoch, tasks).items()}
        if figures:
            module.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        self.termination.agree(federation.pool.comm, raises=False)

    def conclude(self) -> None:
        """Let the options in use act after the last round, and warn of a resumed fit that had no round left to run."""
        trainer = self.federation.trainer
        with outside_precision(trainer, self._default_dtype):
            for hook in self._hooks:
                hook.conclude(trainer.current_epoch)
        if not self.rounds and trainer.current_epoch:
            rank_zero_warn(
                f"Nothing was trained: the checkpoint has {trainer.current_epoch} rounds, and 'trainer.max_epochs' is "
                f"{trainer.max_epochs}. Raise it to train further rounds."
            )

    def _round(self, module: LightningModule, round_idx: int) -> list[ClientTask]:
        """Run a round, log it, and return the turns of the clients."""
        begun = time.perf_counter()
        federation, run, settings, trainer = self.federation, self.run_state, self.settings, self.federation.trainer
        plan = self._begin(round_idx)
        announce(trainer, "on_round_start", round_idx, plan.clients)
        progress = self._progress(round_idx)
        current = FederationRound(federation, round_idx, plan, self._hooks, run.last_scores, progress)
        with closing(current):
            settings.route.run(current)
            result = current.result()
        if settings.pool is not None and not isinstance(settings.strategy, JointStrategy):
            factors = {update.client: settings.strategy.influence(update) for update in result.updates}
            total = math.fsum(factors.values())  # equal shares if all are 0
            shares = {client: factor / total if total > 0 else 1 / len(factors) for client, factor in factors.items()}
            settings.pool.review(round_idx, shares)
        if settings.server_evaluation.every_n_rounds > 1:
            run.last_scores |= current.scores(result.updates)
        run.finished_round = round_idx
        step = self._step_server(module, result)
        accepted = [update.client for update in result.updates]
        waited = federation.pool.settle(round_idx, accepted, run.saved_round)
        missed = tell_failures(federation, current.plan, result.failures)
        announce(trainer, "on_aggregated", result.updates)
        figures = settings.strategy.figures()
        for transform in settings.transforms if federation.pool.simulated else ():  # those of sites run there
            figures |= transform.figures(round_idx + 1, len(current.plan.cohort))
        for hook in self._hooks:
            figures |= hook.after_round(federation, round_idx, result)
        figures |= {"failures": float(missed)} if settings.faults.skips else {}
        figures |= movement(result.updates, step, settings.strategy.averages)
        figures |= {"lr_factor": settings.local.lr_decay**round_idx, **waited}
        figures |= run.totals.add(result.updates, time.perf_counter() - begun)
        self._log(result.updates, figures)
        return current.tasks

    def _begin(self, round_idx: int) -> RoundPlan:
        """Prepare a round, and return its plan."""
        federation = self.federation
        if round_idx == 0:
            self.run_state.reset()
            self.settings.strategy.reset()
            self.settings.route.reset()
        federation.refresh_frozen()
        if federation.pool.comm.size > 1:
            agree_on_buffers(federation.pool.comm, federation.server, type(federation.trainer.lightning_module).__name__)
        for hook in self._hooks:
            hook.begin_round(round_idx)
        if self.run_state.memory.files.used:
            # Rank 0 deletes while the others wait, because it would not know the files that they write in the next round.
            needed = checkpoint_references(federation.trainer) if federation.trainer.is_global_zero else None
            self.run_state.memory.files.sweep(Collectives(federation.trainer), needed)
        return self.sampler.round(round_idx)

    def _progress(self, round_idx: int) -> Progress | None:
        """Return the place of the round's first turn in the whole training; None if each round begins again."""
        if self.settings.local.progress == "round":
            return None
        run, route = self.run_state, self.settings.route
        if round_idx == 0 or not run.rounds:
            run.rounds = [self.federation.planned_rounds]
        (planned,) = run.rounds
        scheduled = run.settings.get("model.lr_scheduler") and not self._warned_of_extension
        if planned is not None and round_idx >= planned and scheduled:
            self._warned_of_extension = True
            rank_zero_warn(
                f"Round {round_idx} goes beyond the {planned} rounds for which this run was first started. Learning-rate "
                "schedules were planned for these rounds and continue past their end, as in Lightning; one with an end, like "
                "OneCycleLR, raises an error. To plan for more rounds, start a new run with a larger 'max_epochs'."
            )
        return Progress(route.turns_before(round_idx), None if planned is None else route.turns_before(planned))

    def _step_server(self, module: LightningModule, result: RoundResult) -> float:
        """Step the server's optimizer, and return the norm of the pseudo-gradient."""
        server, trainer = self.federation.server, self.federation.trainer
        for hook in self._hooks:
            hook.before_step(result)
        release_unused_memory()  # the clients' free memory: with the gradient, this is where a round needs most
        step = set_pseudo_gradient(server.parameters(), result.aggregate)
        self.untouched.check(trainer)  # and again after Lightning's hooks within the step
        optimizer: Any = module.optimizers()
        optimizer.step(lambda: self.untouched.note(trainer.optimizers[0]))  # what it sets itself
        optimizer.zero_grad()
        self.untouched.note(trainer.optimizers[0])
        server.set_buffers(result.aggregate, result.counters)
        if result.moved:
            server.set_moved(result.moved)
            self.run_state.moving = server.apart["moving"]
        return step

    def _log(self, updates: Sequence[ClientUpdate], own: dict[str, float]) -> None:
        """Log the metrics of a round and of its clients to the loggers and the terminal.

        Args:
            updates: the updates of the round.
            own: metrics, logged as ``federation/<name>``; named ``<name>/<client>`` if they belong to a client.
        """
        trainer, data = self.federation.trainer, self.federation.data
        more, columns = {f"federation/{name}": float(x) for name, x in own.items()}, client_metrics(updates, data.client_name)
        if data.num_clients > MOST_COLUMNS:
            more, columns = quantiles(more), quantiles(columns)
        figures = round_metrics(updates) | more
        figures |= {"round": float(trainer.current_epoch), "federation/threads": float(torch.get_num_threads())}
        # Do not use ``module.log``: its averages over batches and ranks cost a millisecond per metric.
        for known in (trainer.callback_metrics, trainer.logged_metrics):
            known.update({name: torch.tensor(value) for name, value in figures.items()})
        for logger in trainer.loggers:
            logger.log_metrics(columns | figures | {"epoch": float(trainer.current_epoch)}, step=trainer.global_step - 1)
        for name, matrix in self.settings.route.matrices().items():
            write_matrix(trainer, name, matrix, [data.client_name(client) for client in range(data.num_clients)])
