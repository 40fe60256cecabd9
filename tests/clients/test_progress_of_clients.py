"""Epochs, steps and schedules of clients continue over rounds, also for clients that miss some."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import ONE_ENOUGH, scheduled
from federations import Blobs, Cohorts, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from plain_training import InOrder
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR

import fl_lightning as fl
from fl_lightning.clients.turn import TurnPlan
from fl_lightning.functional.local_steps import control_change
from fl_lightning.messages import Progress
from fl_lightning.routes import ServerRoute

SIZES = (15, 50)
"""With batches of 5, 3 and 10 steps an epoch."""
SEEN: list[tuple[Any, ...]] = []


class Recording(Plain):
    """Notes, at each step, the client's number of batches, its place and its learning rate."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        limits = self.trainer.max_epochs, self.trainer.num_training_batches
        seen = vars(sys.modules[__name__])["SEEN"]  # a stacked step must not change a global that it names
        seen.append((limits[1], self.current_epoch, self.global_step, rate, limits[0]))
        return super().training_step(batch, batch_idx)


class Cycled(Recording):
    """One cycle over the whole training: from 0.5 up to 1, down to 0.4, both in straight lines."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.5)
        shape = {"pct_start": 0.5, "anneal_strategy": "linear", "div_factor": 2, "final_div_factor": 1.25}
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = OneCycleLR(optimizer, 1.0, steps, cycle_momentum=False, **shape)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def seen_by(make: Any, rounds: int, route: Any = None, **local: Any) -> list[tuple[Any, ...]]:
    """What the steps of one client with three batches an epoch see."""
    SEEN.clear()
    parts = {"data": Blobs(12), "partitioner": Consecutive([12]), **({} if route is None else {"route": route})}
    federate(make(), rounds, local=fl.LocalTraining(**local), **parts)
    return [*SEEN]


def recorded(make: Any, **config: Any) -> Any:
    """A module with a schedule over a rate of 0.5, given its optimizer, that notes its steps."""
    return type("Recorded", (Recording,), {"configure_optimizers": scheduled(make, **config).configure_optimizers})


HALVING = recorded(lambda o: ExponentialLR(o, 0.5))
RATES = {
    3: [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4],  # 4 rounds of 3 steps
    10: [*np.linspace(0.5, 1.0, 20), *np.linspace(1.0, 0.4, 21)[1:]],  # 4 rounds of 10 steps
}


def by_hand(cohorts: list[tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """What each step of rounds of one local epoch must see."""
    expected = []
    for round_idx, (client,) in enumerate(cohorts):
        batches = (3, 10)[client]
        for step in range(batches * round_idx, batches * (round_idx + 1)):
            expected.append((batches, round_idx, step, pytest.approx(RATES[batches][step]), 4))
    return expected


@pytest.mark.parametrize("engine", ONE_ENOUGH)
def test_each_step_of_unequal_clients_that_miss_rounds(engine):
    """One of two clients a round."""
    SEEN.clear()
    cohorts = Cohorts()
    parts: dict[str, Any] = {"data": Blobs(sum(SIZES)), "partitioner": Consecutive(SIZES), "clients_per_round": 1, "seed": 3}
    parts["local"] = fl.LocalTraining(engine=engine)
    federate(Cycled(), 4, cohorts, **parts)
    assert by_hand(cohorts.seen) == SEEN
    assert set(cohorts.seen) == {(0,), (1,)}


def test_each_round_on_its_own():
    """As before, on request: every round begins at 0 and sees its own steps only."""
    once = [(3, step // 3, step, pytest.approx(rate), 4) for step, rate in enumerate(RATES[3])]
    assert seen_by(Cycled, 2, progress="round", max_epochs=4) == [*once, *once]


@pytest.mark.parametrize("engine", ONE_ENOUGH)
def test_a_turn_of_several_epochs_and_a_straggler(engine):
    """A client that does 1 of 2 epochs begins its next turn where the others do."""
    plan = TurnPlan(epochs=1, whole_epochs=2, progress=Progress(3, 5))
    assert plan.first(4) == (6, 24)
    assert plan.limits == (10, -1)
    places = [(epoch, step, rate) for _, epoch, step, rate, _ in seen_by(HALVING, 3, engine=engine, max_epochs=2)]
    assert places == [(step // 3, step, 0.5 * 0.5 ** (step // 3)) for step in range(18)]


def test_limited_steps():
    """A turn of 4 steps of 3 batches an epoch: its second epoch ends early, and its schedule of epochs does not see it."""
    places = [(epoch, step, rate) for _, epoch, step, rate, _ in seen_by(HALVING, 2, max_epochs=-1, max_steps=4)]
    first = [(0, 0, 0.5), (0, 1, 0.5), (0, 2, 0.5), (1, 3, 0.25)]
    assert places == [*first, (2, 4, 0.25), (2, 5, 0.25), (2, 6, 0.25), (3, 7, 0.125)]


def test_periods():
    """On a route of two periods, a round is two turns; a warm start's rounds are one."""
    seen = seen_by(HALVING, 2, fl.RingFed(2))
    assert [(epoch, rate, most) for _, epoch, _, rate, most in seen[::3]] == [(e, 0.5 * 0.5**e, 4) for e in range(4)]
    route = fl.WarmStart(3, fl.RingFed(2))
    assert [route.turns_before(r) for r in range(6)] == [0, 1, 2, 3, 5, 7]
    assert ServerRoute().turns_before(7) == 7


def test_an_own_way_to_step_a_schedule_sees_the_epoch():
    def lr_scheduler_step(self: Any, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.current_epoch + 1)  # as timm's schedulers want

    make = recorded(lambda o: LambdaLR(o, lambda epoch: 1 / (1 + epoch)))
    make.lr_scheduler_step = lr_scheduler_step
    with pytest.warns(UserWarning, match="epoch parameter"):
        seen = seen_by(make, 3)
    assert [rate for *_, rate, _ in seen[::3]] == [pytest.approx(0.5 / (1 + r)) for r in range(3)]


class Breaks(Plain):
    """The update of the client with 4 batches is not a number in round 1."""

    def on_train_end(self) -> None:
        if self.trainer.num_training_batches == 4 and self.current_epoch == 4:
            with torch.no_grad():
                self.net[0].weight.fill_(torch.nan)


def kept_by_clients(kind: type[Plain], rounds: int = 2, **settings: Any) -> list[dict[str, Tensor]]:
    """What each client has packed after training with momentum."""
    torch.manual_seed(2)
    federation = fl.FederatedOrchestrator(local=fl.LocalTraining(optimizer_state="kept", max_epochs=2), **settings)
    data = fl.FederatedDataModule(Blobs(), Consecutive((8, 19, 13)), client_test=0.1)
    trainer(rounds, federation).fit(kind(momentum=0.9), data)
    return [federation._run.memory.kept(client)["training"] for client in range(3)]


def test_a_rejected_turn_does_not_move_what_the_client_keeps():
    """Client 1 fails in round 1, and keeps the momentum of round 0."""
    one, two = (kept_by_clients(Breaks, rounds, faults=fl.Faults("skip")) for rounds in (1, 2))
    assert list(map(same_bits, one, two)) == [False, True, False]


def test_fine_tuning_leaves_what_clients_keep_alone():
    tunes = fl.ClientEvaluation(1, "val_acc", personal_epochs=2, compare_alone=True)
    assert all(map(same_bits, kept_by_clients(Plain), kept_by_clients(Plain, client_evaluation=tunes)))


def test_scaffold_leaves_its_control_at_a_rate_of_nearly_zero():
    end = torch.tensor([1.0 + 1e-7])
    assert control_change(torch.ones(1), [torch.ones(1)], end, 1e-9) == 0
    make = scheduled(lambda o: LambdaLR(o, lambda step: step / 10), interval="step")
    module = make()
    federate(module, 2, data=Blobs(10), partitioner=Consecutive([5, 5]), local=fl.LocalTraining(), strategy=fl.Scaffold())
    assert all(tensor.isfinite().all() for tensor in weights(module).values() if tensor.is_floating_point())


class Planned(Recording):
    """A schedule by the length of the training, as many modules have it."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.5)
        return [optimizer], [CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)]


def in_parts(run: Any, module: Any, data: Any, folder: Path, ends: tuple[int, ...], *callbacks: Any) -> Any:
    """Train up to one number of epochs after another, each time with a new Trainer that resumes."""
    for number, end in enumerate(ends):
        checkpoint = str(folder / "last.ckpt") if number else None
        torch.manual_seed(3)
        module = type(module)()
        again = trainer(end, *callbacks, every_round(folder), enable_checkpointing=True)
        run(again, module, data, checkpoint)
    return module


@pytest.mark.parametrize("engine", [*ONE_ENOUGH, pytest.param("stacked", marks=pytest.mark.slow)])
def test_an_extended_run_keeps_its_plan_as_in_lightning(engine, tmp_path):
    """Two rounds, then four, then five: the module always sees two, and has the weights of plain Lightning training."""
    SEEN.clear()
    plain = InOrder(Blobs(23).train)
    fit = lambda run, module, data, checkpoint: run.fit(module, data, ckpt_path=checkpoint)  # noqa: E731
    expected = in_parts(fit, Planned(), plain, tmp_path / "plain", (2, 4, 5))
    rates = [rate for *_, rate, _ in SEEN]
    assert rates == pytest.approx([0.5] * 5 + [0.25] * 5 + [0.0] * 5 + [0.25] * 5 + [0.5] * 5)

    SEEN.clear()
    data = fl.FederatedDataModule(Blobs(23, shuffle=False), Consecutive([23]))
    federation = fl.FederatedOrchestrator(local=fl.LocalTraining(engine=engine))
    with pytest.warns(UserWarning, match=r"Round 2 goes beyond the 2 rounds for which this run was first started\.") as told:
        found = in_parts(fit, Planned(), data, tmp_path / "federated", (2, 4, 5), federation)
    assert any("Round 4 goes beyond the 2 rounds" in str(one.message) for one in told)
    if engine != "stacked":  # which calls the step once more to look at it
        assert [rate for *_, rate, _ in SEEN] == pytest.approx(rates)
    assert {limit for *_, limit in SEEN} == {2}
    for name, tensor in weights(found).items():
        torch.testing.assert_close(tensor, weights(expected)[name], rtol=0, atol=1e-6)
