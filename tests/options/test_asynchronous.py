"""Asynchronous rounds beside an event loop by hand, and synchronous ones that they must equal."""

from __future__ import annotations

import copy
import csv
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from against_hand import Updates, assert_follows
from by_hand import World, build, flat
from federations import SIZES, Blobs, Consecutive, Plain, every_round, federate, same_bits, weights

from fl_lightning import (
    AdaFed,
    Asynchronous,
    Availability,
    ClientError,
    ClientPrivacy,
    ClientTable,
    ClipUpdate,
    Clock,
    ExamplePrivacy,
    Faults,
    FedAsync,
    FedBuff,
    FederatedOrchestrator,
    FederationCallback,
    FedMedian,
    LocalTraining,
    PersonalPart,
)

DURATIONS = {0: [3, 2, 4, 1, 6, 2], 1: [7, 9, 8, 7, 9, 8], 2: [4, 3, 5, 6, 2, 4]}
"""Ticks of each client's training, by the round in which it begins."""
RATES: list[float] = []
FIVE = (7, 22, 12, 9, 12)
FABRIC = LocalTraining(engine="fabric", max_epochs=2)


@dataclass(frozen=True)
class Given(Clock):
    """Durations from a table."""

    table: dict = field(default_factory=lambda: DURATIONS)

    def duration(self, client, round_idx, sizes, seed, factor=1.0):
        return self.table[client][round_idx]


def by_ticks(world, net, rounds, buffer, combine, train):
    """Yield the models: tick by tick, each client trains as soon as it begins, and waits for a new model when it has ended.

    ``combine(net, updates)`` gets a list of (client, start, trained, staleness).
    """
    clients = range(len(world.parts))
    busy, waits, buffered = {}, set(), []  # by client: the tick of its end, its start, its model, its round
    tick = t = 0
    while t < rounds:
        for k in clients:  # in the order of clients
            if k in busy and busy[k][0] == tick:
                _, start, trained, begun = busy.pop(k)
                buffered.append((k, start, trained, t - begun))
                waits.add(k)
                if len(buffered) == buffer:
                    net = combine(net, buffered)
                    buffered, waits, t = [], set(), t + 1
                    yield net, tick
        if t < rounds:
            for k in clients:
                if k not in busy and k not in waits:
                    busy[k] = (tick + DURATIONS[k][t], net, train(net, k), t)
        tick += 1


def fedbuff(world, share, s, lr=1.0, clip=None):
    def combine(net, updates):
        now, floats, integers = flat(net)
        total = sum(share(k) for k, *_ in updates)
        step, moved = np.zeros_like(now), np.zeros_like(floats)
        for k, start, trained, staleness in updates:
            change = flat(trained)[0] - flat(start)[0]
            if clip is not None:
                change = change * min(1.0, clip / np.linalg.norm(change))
            factor = share(k) / total * s(staleness)
            step += factor * change
            moved += factor * (flat(trained)[1] - floats)
            integers = np.maximum(integers, flat(trained)[2])
        return build(net, now + lr * step, floats + moved, integers)

    return combine


def follows(dtype, combine, buffer, rounds=6, batchnorm=True, mu=0.0, **settings):
    """Compare a federation with the loop by hand after each of its rounds but the first ones."""
    world = World(dtype, mu=mu)
    seen: list = []

    def step(net, world, t):
        if not seen:
            seen.extend(by_ticks(world, net, rounds, buffer, combine(world), lambda net, k: world.train(net, k)[0]))
        return seen[t][0]

    local = LocalTraining(engine="fabric", max_epochs=2, proximal_mu=mu)
    run, updates = assert_follows(
        dtype,
        step,
        world=world,
        batchnorm=batchnorm,
        local=local,
        rounds=rounds,
        asynchronous=Asynchronous(1.0, buffer),
        clock=Given(),
        **settings,
    )
    return run, updates, seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedbuff_follows_its_paper(weighting, dtype):
    """Nguyen et al. 2022, Algorithm 1: w + lr / K sum_k s(tau_k) (w_k - w_start) with s = 1 / sqrt(1 + tau)."""
    run, updates, seen = follows(
        dtype,
        lambda world: fedbuff(
            world, lambda k: SIZES[k] if weighting == "examples" else 1, lambda tau: 1 / np.sqrt(1 + tau), lr=0.7
        ),
        2,
        strategy=FedBuff(lr=0.7, weighting=weighting),
    )
    stale = [[(u.client, u.staleness) for u in each] for each in updates]
    assert stale == [[(0, 0), (2, 0)], [(0, 0), (1, 1)], [(0, 0), (2, 1)], [(0, 0), (1, 1)], [(0, 0), (2, 1)], [(0, 0), (1, 1)]]
    assert float(run.callback_metrics["federation/ticks"]) == seen[-1][1]
    assert float(run.callback_metrics["federation/staleness"]) == 0.5
    assert float(run.callback_metrics["federation/staleness_max"]) == 1


def test_fedbuff_with_a_hinge_momentum_and_clipped_changes():
    """A transform reads the change from the client's own start."""
    velocity: list = []

    def combine(world):
        inner = fedbuff(world, lambda k: SIZES[k], lambda tau: 1 if tau <= 1 else 1 / (2 * (tau - 1) + 1), clip=0.05)

        def step(net, updates):
            moved = inner(net, updates)
            velocity[:] = [flat(moved)[0] - flat(net)[0] + (0.5 * velocity[0] if velocity else 0)]
            return build(moved, flat(net)[0] + velocity[0], *flat(moved)[1:])

        return step

    follows(
        torch.float64,
        combine,
        1,
        strategy=FedBuff(momentum=0.5, staleness="hinge", a=2.0, b=1),
        transforms=[ClipUpdate(0.05)],
    )


@pytest.mark.parametrize(("mixes", "rounds"), [("models", 6), ("changes", 6), ("models", 5)])
def test_fedasync_follows_its_paper(mixes, rounds):
    """Xie et al. 2019, Algorithm 1, with its proximal term: (1 - alpha_t) w + alpha_t w_k, alpha_t = alpha (1 + tau)^-a.

    The fifth update has counted 8 batches since the first model, which has counted 12 meanwhile.
    """

    def combine(world):
        def step(net, updates):
            ((_, start, trained, staleness),) = updates
            alpha = 0.8 * (1 + staleness) ** -0.3
            (now, floats, integers), (new, moved, counted), (old, *_) = flat(net), flat(trained), flat(start)
            new = new if mixes == "models" else now + new - old
            mixed = (1 - alpha) * now + alpha * new, (1 - alpha) * floats + alpha * moved
            return build(net, *mixed, np.maximum(integers, counted))

        return step

    _, updates, _ = follows(torch.float64, combine, 1, rounds, mu=0.1, strategy=FedAsync(0.8, a=0.3, mixes=mixes))
    assert [(u.client, u.staleness) for (u,) in updates] == [(0, 0), (2, 1), (0, 1), (0, 0), (1, 4), (2, 3)][:rounds]
    assert [u.weight for (u,) in updates][:2] == [0.8, 0.8 * 2**-0.3]


class Halving(Plain):
    """Halves its rate after each epoch, and notes it."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            RATES.append(self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


def test_a_schedule_is_where_it_was_when_the_client_began():
    """The six updates of FedAsync above began with these models; each trains for two epochs."""
    RATES.clear()
    settings = {"asynchronous": Asynchronous(1.0, 1), "clock": Given(), "strategy": FedAsync(), "local": FABRIC}
    federate(Halving(1.0), 6, **settings)
    epochs = [2 * begun + epoch for begun in (0, 0, 1, 3, 0, 2) for epoch in range(2)]
    assert [0.5**epoch for epoch in epochs] == RATES


def test_other_strategies_combine_changes_from_each_start():
    """The median of w_t + (w_k - w_start)."""

    def combine(world):
        def step(net, updates):
            now, *_ = flat(net)
            rebased = [now + flat(trained)[0] - flat(start)[0] for _, start, trained, _ in updates]
            moved = [flat(trained)[1] for _, _, trained, _ in updates]
            return build(
                net, np.median(rebased, axis=0), np.median(moved, axis=0), np.max([flat(u[2])[2] for u in updates], axis=0)
            )

        return step

    follows(torch.float64, combine, 2, strategy=FedMedian(), rounds=5)


# ---------------------------------------------------------------- synchronous rounds as a special case


def fitted(rounds=3, module=None, callbacks=(), **settings):
    torch.manual_seed(5)
    module = module() if module else Plain(batchnorm=True, momentum=0.9)
    settings.setdefault("local", FABRIC)
    run = federate(module, rounds, *callbacks, data=Blobs(n=sum(FIVE)), partitioner=Consecutive(FIVE), **settings)
    return weights(module), run


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"local": replace(FABRIC, optimizer_state="kept", lr_decay=0.9)},
        {"availability": Availability(leave=0.4)},
        {"personal": [PersonalPart(names="net.3.*")]},
        {"transforms": [ClipUpdate(0.2)]},
        {"clients_per_round": 5},
        {"local": replace(FABRIC, engine="stacked")},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_equal_speeds_with_buffer_and_concurrency_of_the_cohort_are_synchronous_to_the_bit(settings):
    cohort = settings.get("clients_per_round", 3)
    settings = {name: value for name, value in settings.items() if name != "clients_per_round"}
    expected, _ = fitted(clients_per_round=cohort, **settings)
    found, run = fitted(strategy=FedBuff(), asynchronous=Asynchronous(cohort, cohort), **settings)
    assert same_bits(found, expected)
    assert float(run.callback_metrics["federation/ticks"]) == 3000
    assert float(run.callback_metrics["federation/staleness_max"]) == 0


def test_privacy_of_examples_and_noise_at_the_clients_are_counted_for_each_training():
    """Equal speeds spend what synchronous rounds spend; otherwise the account has the updates that arrived, and their steps."""
    private = {
        "local": replace(FABRIC, privacy=ExamplePrivacy(1.0, 0.5, noise_seed=7)),
        "transforms": [ClientPrivacy(0.5, 0.3, "local", noise_seed=7)],
    }
    expected, run = fitted(module=Plain, clients_per_round=3, **private)
    found, other = fitted(module=Plain, strategy=FedBuff(), asynchronous=Asynchronous(3, 3), **private)
    assert same_bits(found, expected)
    for name in ("federation/epsilon_of_examples", "federation/epsilon_of_clients"):
        assert float(other.callback_metrics[name]) == float(run.callback_metrics[name]) > 0
    updates = Updates()
    settings = {"asynchronous": Asynchronous(5, 2), "clock": Clock("lognormal", "half_normal"), "strategy": FedBuff()}
    _, run = fitted(6, Plain, [updates], **private, **settings)
    federation = next(callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))
    ((_, spent),) = federation._run.hooks["local.privacy"].spending.parts
    arrived = [u for each in updates.rounds for u in each]
    assert max(u.staleness for u in arrived) > 0
    assert spent.sent == Counter(u.client for u in arrived)
    assert spent.steps == {k: sum(u.num_steps for u in arrived if u.client == k) for k in spent.sent}


def test_a_strategy_may_score_the_models_that_clients_send():
    expected, _ = fitted(strategy=AdaFed("val_acc"))
    found, _ = fitted(strategy=AdaFed("val_acc"), asynchronous=Asynchronous(5, 5))
    assert same_bits(found, expected)


@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_engines_agree_on_clients_with_different_starts(engine):
    clock = Clock("lognormal", "half_normal")
    settings = {"strategy": FedBuff(), "asynchronous": Asynchronous(4, 2), "clock": clock}
    expected, _ = fitted(6, **settings)
    updates = Updates()
    found, _ = fitted(6, callbacks=[updates], local=replace(FABRIC, engine=engine), **settings)
    assert len({u.staleness for each in updates.rounds for u in each}) > 1
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- clients that are absent, slow or lost


def test_slow_clients_do_all_their_steps_and_take_longer():
    updates, slow = Updates(), Availability(slow=0.4, slowness=3)
    fitted(5, callbacks=[updates], strategy=FedAsync(), asynchronous=Asynchronous(), availability=slow)
    fast = [k for k in range(5) if k not in slow.slow_clients(5, 0)]
    assert [u.client for each in updates.rounds for u in each] == [*fast, *fast[:2]]  # tick 1000, then 2000
    assert all(u.num_steps == 2 * -(-u.num_examples // 5) for each in updates.rounds for u in each)


class Missed(FederationCallback):
    """Keeps the round and the client of what did not arrive."""

    def __init__(self):
        self.clients = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.clients.append((failure.round_idx, failure.client))


def test_lost_updates_leave_their_place_to_others_and_are_reported():
    updates, missed = Updates(), Missed()
    fitted(
        6,
        callbacks=[updates, missed],
        strategy=FedBuff(),
        asynchronous=Asynchronous(4, 2),
        availability=Availability(drop_out=0.4),
        faults=Faults("skip"),
        clock=Clock(between_jobs="exponential"),
    )
    lost = Availability(drop_out=0.4)
    for t, each in enumerate(updates.rounds):
        assert len(each) == 2
        assert not any(lost.loses(u.client, 0, t - u.staleness) for u in each)
    assert missed.clients
    assert all(any(lost.loses(client, 0, begun) for begun in range(t + 1)) for t, client in missed.clients)


def test_a_buffer_that_nobody_can_fill_is_flushed_like_a_round_with_drop_outs():
    updates = Updates()
    fitted(
        4,
        callbacks=[updates],
        strategy=FedBuff(),
        asynchronous=Asynchronous(5, 5),
        availability=Availability(drop_out=0.4),
        faults=Faults("skip"),
    )
    lost = Availability(drop_out=0.4)
    for t, each in enumerate(updates.rounds):
        assert [u.client for u in each] == [k for k in range(5) if not lost.loses(k, 0, t)]
    assert min(map(len, updates.rounds)) < 5


def test_a_round_without_updates_ends_the_run():
    with pytest.raises(
        ClientError, match=r"Round 0: 0 updates can arrive, but a new model needs 1. Lower .*, or lower 'drop_out'"
    ):
        fitted(asynchronous=Asynchronous(5, 5), availability=Availability(drop_out=0.999), strategy=FedBuff())


class Fails(Plain):
    """Client 1, of 22 examples, fails."""

    def training_step(self, batch, batch_idx):
        if self.trainer.num_training_batches == 5:
            raise RuntimeError("no power")
        return super().training_step(batch, batch_idx)


def test_a_client_that_fails_is_left_out():
    updates, missed = Updates(), Missed()
    settings = {"strategy": FedBuff(), "asynchronous": Asynchronous(5, 2), "faults": Faults("skip")}
    fitted(6, Fails, [updates, missed], clock=Clock(between_jobs="uniform"), **settings)
    rounds = [t for t, client in missed.clients if client == 1]
    assert len(rounds) == len(missed.clients) >= 2
    assert [len(each) for each in updates.rounds] == [1 if t in rounds else 2 for t in range(6)]


# ---------------------------------------------------------------- the clock


def test_draws_have_mean_one_and_belong_to_client_and_job():
    for name in ("uniform", "exponential", "half_normal", "lognormal"):
        jobs = np.array([Clock(between_jobs=name).duration(k, t, [1] * 50, 7) for k in range(50) for t in range(80)]) / 1000
        variance = {"uniform": 1 / 12, "exponential": 1.0, "half_normal": np.pi / 2 - 1, "lognormal": np.e - 1}[name]
        assert abs(jobs.mean() - 1) < 5 * (variance / len(jobs)) ** 0.5
        assert 0.7 < jobs.var() / variance < 1.5
        assert jobs.min() >= 0.001
        clients = [[Clock(between_clients=name).duration(k, t, [1] * 9, 7) for t in range(3)] for k in range(9)]
        assert len({tuple(each) for each in clients}) == 9
        assert all(len(set(each)) == 1 for each in clients)
    sizes = [10, 30, 20]
    assert [Clock(ticks=100, by_examples=True).duration(k, 0, sizes, 0) for k in range(3)] == [50, 150, 100]
    assert Clock(ticks=1).duration(0, 0, sizes, 0, 0.1) == 1


def test_synchronous_rounds_wait_for_the_last_client():
    clock = Clock("lognormal", "uniform")
    updates = Updates()
    plain, _ = fitted(clients_per_round=3)
    found, run = fitted(callbacks=[updates], clients_per_round=3, clock=clock)
    assert same_bits(found, plain)
    ticks = [max(clock.duration(u.client, t, FIVE, 0) for u in each) for t, each in enumerate(updates.rounds)]
    assert float(run.callback_metrics["federation/ticks"]) == sum(ticks)
    assert "federation/staleness" not in run.callback_metrics


@pytest.mark.parametrize("resumes", [True, False], ids=["from a checkpoint", "in a second fit"])
def test_the_time_goes_on(tmp_path, resumes):
    settings = {"clock": Clock("lognormal", "uniform"), "clients_per_round": 3}
    _, whole = fitted(4, **settings)
    _, run = fitted(2, callbacks=[every_round(tmp_path)], flags={"enable_checkpointing": True}, **settings)
    if resumes:
        _, run = fitted(4, ckpt_path=str(tmp_path / "last.ckpt"), **settings)
    else:
        run.fit_loop.max_epochs = 4
        run.fit(run.lightning_module, run.datamodule)
    assert run.callback_metrics["federation/ticks"] == whole.callback_metrics["federation/ticks"]


def test_tables_show_the_staleness_of_each_update(tmp_path):
    updates = Updates()
    fitted(
        5,
        callbacks=[updates, ClientTable()],
        strategy=FedBuff(),
        asynchronous=Asynchronous(5, 2),
        clock=Clock("lognormal"),
        flags={"default_root_dir": str(tmp_path)},
    )
    with Path(tmp_path / "client_rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [(int(row["round"]), int(row["client"]), int(float(row["staleness"]))) for row in rows]
    assert found == [(t, u.client, u.staleness) for t, each in enumerate(updates.rounds) for u in each]
    assert max(staleness for *_, staleness in found) > 0


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_holds_the_jobs_in_progress_and_their_starts(tmp_path):
    """One model for each round from which some job started, on top of the weights; none in a synchronous run."""
    settings = {"strategy": FedAsync(), "asynchronous": Asynchronous(4), "clock": Clock("lognormal", "exponential")}
    saving = {"flags": {"enable_checkpointing": True}}
    _, run = fitted(7, callbacks=[every_round(tmp_path)], **settings, **saving)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    state = saved["options"]["asynchronous"]
    flights, starts = state["queue"]["flights"], state["starts"]
    assert len(flights) == 3
    assert set(starts) == {version for _, _, version, _ in flights}
    assert min(starts) < 6
    assert set(starts[min(starts)]) == set(run.lightning_module.net.state_dict(prefix="net."))
    assert state["queue"]["tick"] == float(run.callback_metrics["federation/ticks"]) <= min(tick for tick, *_ in flights)

    whole, _ = fitted(9, **settings)
    torch.manual_seed(6)
    module = Plain(batchnorm=True, momentum=0.9)
    federate(
        module,
        9,
        data=Blobs(n=sum(FIVE)),
        partitioner=Consecutive(FIVE),
        ckpt_path=str(tmp_path / "last.ckpt"),
        local=FABRIC,
        **copy.deepcopy(settings),
    )
    assert same_bits(weights(module), whole)
