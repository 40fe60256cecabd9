"""Run the rounds of a fit: draw the cohort, run the route, step the server, and log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.hooks import ServerHooks
from fl_lightning.functional.pseudo_gradient import set_pseudo_gradient
from fl_lightning.functional.recycling import release_unused_memory
from fl_lightning.messages import ClientTask, Progress
from fl_lightning.reporting.rounds import MOST_COLUMNS, movement
from fl_lightning.server.announcements import announce, tell_failures
from fl_lightning.server.client_files import sweep_client_files
from fl_lightning.server.federation import Federation
from fl_lightning.server.rank_buffers import RankBuffers
from fl_lightning.server.round import FederationRound
from fl_lightning.server.round_log import log_round, write_matrices
from fl_lightning.server.round_result import RoundResult, influences
from fl_lightning.server.run_state import RunState
from fl_lightning.server.sampling import ClientSampler, RoundPlan
from fl_lightning.server.takeover import Termination, Untouched, outside_precision, planned_rounds
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.strategies.base import JointStrategy


class RoundRunner:
    """Run one round for each epoch of the user's Trainer.

    Args:
        settings: the settings of the federation.
        run: the state of the run.
        federation: the parts of the federation.
        sampler: the sampler that draws the rounds.
        hooks: the hooks of the options in use, in order.
        termination: tells all ranks when one is told to end.
        untouched: refuses changes of the server's optimizer by anything but its own step.
    """

    def __init__(
        self,
        *,
        settings: FederationSettings,
        run: RunState,
        federation: Federation,
        sampler: ClientSampler,
        hooks: Sequence[ServerHooks],
        termination: Termination,
        untouched: Untouched,
    ) -> None:
        self._settings, self._run, self._federation = settings, run, federation
        self._sampler, self._hooks = sampler, hooks
        self._termination, self._untouched = termination, untouched
        self._buffers = RankBuffers(federation.server, federation.comm)
        self._default_dtype = torch.get_default_dtype()
        self.rounds = 0
        """The number of rounds that have been run in this fit."""
        self._warned_of_extension = False

    def run(self, module: LightningModule) -> None:
        """Run a round, after which the module contains the new global model."""
        trainer, comm = self._federation.trainer, self._federation.comm
        self.rounds += 1
        self._untouched.check(trainer)
        self._termination.agree(comm, raises=True)
        with outside_precision(trainer, self._default_dtype):
            tasks = self._round(module)
            if not self._federation.pool.simulated:
                release_unused_memory()  # no client trains here, which would reuse it
            figures: dict[str, float] = {}
            for hook in self._hooks:
                figures |= hook.end_round(trainer.current_epoch, tasks)
        if figures:
            module.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        self._termination.agree(comm, raises=False)

    def warn_if_none(self) -> None:
        """Warn of a resumed fit that had no round left to run."""
        trainer = self._federation.trainer
        if not self.rounds and trainer.current_epoch:
            rank_zero_warn(
                f"Nothing was trained: the checkpoint has {trainer.current_epoch} rounds, and 'trainer.max_epochs' is "
                f"{trainer.max_epochs}. Raise it to train further rounds."
            )

    def conclude(self) -> None:
        """Let the options in use act after the last round."""
        with outside_precision(self._federation.trainer, self._default_dtype):
            for hook in self._hooks:
                hook.conclude(self._federation.trainer.current_epoch)

    def _round(self, module: LightningModule) -> list[ClientTask]:
        """Run a round, log it, and return the turns of the clients."""
        begun = time.perf_counter()
        federation, run, trainer = self._federation, self._run, self._federation.trainer
        round_idx = trainer.current_epoch
        plan = self._begin(round_idx)
        announce(trainer, "on_round_start", round_idx, plan.clients)
        federation_round = self._new_round(round_idx, plan)
        with closing(federation_round):
            self._settings.route.run(federation_round)
            result = federation_round.result()
        if self._settings.pool is not None and not isinstance(self._settings.strategy, JointStrategy):
            self._settings.pool.review(round_idx, influences(self._settings.strategy, result.updates))
        if self._settings.server_evaluation.every_n_rounds > 1:
            run.last_scores |= federation_round.scores(result.updates)
        run.engine, run.finished_round = federation.engine, round_idx
        step = self._step_server(module, result)
        accepted = [update.client for update in result.updates]
        waited = federation.pool.settle(round_idx, accepted, run.saved_round)
        missed = tell_failures(trainer, round_idx, plan.lost, result.failures, federation.data.client_name)
        announce(trainer, "on_aggregated", result.updates)
        figures = self._figures(federation_round, result, step, missed) | waited
        figures |= run.totals.add(result.updates, time.perf_counter() - begun)
        data = federation.data
        log_round(trainer, result.updates, figures, data.num_clients <= MOST_COLUMNS, data.client_name)
        write_matrices(trainer, self._settings.route.matrices(), federation.data)
        return federation_round.tasks

    def _new_round(self, round_idx: int, plan: RoundPlan) -> FederationRound:
        settings, run = self._settings, self._run
        return FederationRound(
            federation=self._federation,
            round_idx=round_idx,
            plan=plan,
            hooks=self._hooks,
            last_scores=run.last_scores,
            from_own_models=settings.route.keeps_models,
            progress=self._progress(round_idx),
        )

    def _progress(self, round_idx: int) -> Progress | None:
        """Return the place of the round's first turn in the whole training; None if each round begins again."""
        if self._settings.local.progress == "round":
            return None
        run, trainer, route = self._run, self._federation.trainer, self._settings.route
        if round_idx == 0 or not run.rounds_are_known:
            run.note_rounds(planned_rounds(trainer))
        if run.rounds is not None and round_idx >= run.rounds and run.schedules and not self._warned_of_extension:
            self._warned_of_extension = True
            rank_zero_warn(
                f"Round {round_idx} goes beyond the {run.rounds} rounds for which this run was first started. Learning-rate "
                "schedules were planned for these rounds and continue past their end, as in Lightning; one with an end, like "
                "OneCycleLR, raises an error. To plan for more rounds, start a new run with a larger 'max_epochs'."
            )
        return Progress(route.turns_before(round_idx), None if run.rounds is None else route.turns_before(run.rounds))

    def _begin(self, round_idx: int) -> RoundPlan:
        """Prepare a round, and return its plan."""
        if round_idx == 0:
            self._run.reset()
            self._settings.strategy.reset()
            self._settings.route.reset()
        self._federation.refresh_frozen()
        self._buffers.agree(type(self._federation.trainer.lightning_module).__name__)
        for hook in self._hooks:
            hook.begin_round(round_idx)
        sweep_client_files(self._federation.trainer, self._run.memory)
        return self._sampler.round(round_idx)

    def _step_server(self, module: LightningModule, result: RoundResult) -> float:
        """Step the server's optimizer, and return the norm of the pseudo-gradient."""
        server = self._federation.server
        for hook in self._hooks:
            hook.before_step(result)
        release_unused_memory()  # the clients' free memory: with the gradient, this is where a round needs most
        step = set_pseudo_gradient(server.parameters(), result.aggregate)
        self._untouched.check(self._federation.trainer)  # and again after Lightning's hooks within the step
        optimizer: Any = module.optimizers()
        optimizer.step(lambda: self._untouched.note(self._federation.trainer.optimizers[0]))  # what it sets itself
        optimizer.zero_grad()
        self._untouched.note(self._federation.trainer.optimizers[0])
        server.set_buffers(result.aggregate, result.counters)
        if result.moved:
            server.set_moved(result.moved)
            self._run.moving = server.apart["moving"]
        self._buffers.note()
        return step

    def _figures(self, federation_round: FederationRound, result: RoundResult, step: float, missed: int) -> dict[str, float]:
        """Return the metrics of a round that do not belong to single clients."""
        settings = self._settings
        figures = settings.strategy.figures() | federation_round.figures()
        for hook in self._hooks:
            figures |= hook.after_round(self._federation, federation_round.round_idx, result)
        figures |= {"failures": float(missed)} if settings.faults.skips else {}
        figures |= movement(result.updates, step, settings.strategy.averages)
        return figures | {"lr_factor": settings.local.lr_decay**federation_round.round_idx}
