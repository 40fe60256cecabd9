"""Asynchronous rounds beside an event loop by hand; clients that are absent, slow or lost; and the simulated clock."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from against_hand import Updates, assert_follows
from by_hand import World, build, flat
from engine_runs import scheduled, variant
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, weights
from torch.optim.lr_scheduler import ExponentialLR

import fl_lightning as fl

DURATIONS = {0: [3, 2, 4, 1, 6, 2], 1: [7, 9, 8, 7, 9, 8], 2: [4, 3, 5, 6, 2, 4]}
"""Ticks of each client's training, by the round in which it begins."""
RATES: list[float] = []
FIVE = (7, 22, 12, 9, 12)
FABRIC = fl.LocalTraining(engine="fabric", max_epochs=2)


def fitted(rounds=3, module=None, callbacks=(), **settings):
    """Fit five clients, which may train at speeds of their own."""
    torch.manual_seed(5)
    module = module() if module else Plain(batchnorm=True, momentum=0.9)
    settings.setdefault("local", FABRIC)
    run = federate(module, rounds, *callbacks, data=Blobs(n=sum(FIVE)), partitioner=Consecutive(FIVE), **settings)
    return weights(module), run


class Missed(fl.FederationCallback):
    """Keeps the round and the client of what did not arrive."""

    def __init__(self):
        self.clients = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.clients.append((failure.round_idx, failure.client))


@dataclass(frozen=True)
class Given(fl.Clock):
    """Durations from a table."""

    table: dict = field(default_factory=lambda: DURATIONS)

    def duration(self, client, round_idx, sizes, seed, factor=1.0):
        return self.table[client][round_idx]


TIMED = fl.Availability(clock=Given())


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


def follows(combine, buffer, rounds=6, mu=0.0, **settings):
    """Compare a federation with the loop by hand after each of its rounds but the first ones."""
    world = World(torch.float64, mu=mu)
    seen: list = []

    def step(net, world, t):
        if not seen:
            seen.extend(by_ticks(world, net, rounds, buffer, combine(world), lambda net, k: world.train(net, k)[0]))
        return seen[t][0]

    local = fl.LocalTraining(engine="fabric", max_epochs=2, proximal_mu=mu)
    run, updates = assert_follows(
        torch.float64,
        step,
        world=world,
        local=local,
        rounds=rounds,
        asynchronous=fl.Asynchronous(1.0, buffer),
        availability=TIMED,
        **settings,
    )
    return run, updates, seen


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedbuff_follows_its_paper(weighting):
    """Nguyen et al. 2022, Algorithm 1: w + lr / K sum_k s(tau_k) (w_k - w_start) with s = 1 / sqrt(1 + tau)."""
    run, updates, seen = follows(
        lambda world: fedbuff(
            world, lambda k: SIZES[k] if weighting == "examples" else 1, lambda tau: 1 / np.sqrt(1 + tau), lr=0.7
        ),
        2,
        strategy=fl.FedBuff(lr=0.7, weighting=weighting),
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
        combine,
        1,
        strategy=fl.FedBuff(momentum=0.5, staleness="hinge", a=2.0, b=1),
        transforms=[fl.ClipUpdate(0.05)],
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

    _, updates, _ = follows(combine, 1, rounds, mu=0.1, strategy=fl.FedAsync(0.8, a=0.3, mixes=mixes))
    assert [(u.client, u.staleness) for (u,) in updates] == [(0, 0), (2, 1), (0, 1), (0, 0), (1, 4), (2, 3)][:rounds]
    assert [u.weight for (u,) in updates][:2] == [0.8, 0.8 * 2**-0.3]


def note_rate(self, batch, batch_idx):
    if batch_idx == 0:
        RATES.append(self.optimizers().param_groups[0]["lr"])
    return Plain.training_step(self, batch, batch_idx)


def test_a_schedule_is_where_it_was_when_the_client_began():
    """The six updates of FedAsync above began with these models; each trains for two epochs."""
    RATES.clear()
    halving = variant(scheduled(lambda optimizer: ExponentialLR(optimizer, 0.5)), training_step=note_rate)
    federate(halving(), 6, asynchronous=fl.Asynchronous(1.0, 1), availability=TIMED, strategy=fl.FedAsync(), local=FABRIC)
    epochs = [2 * begun + epoch for begun in (0, 0, 1, 3, 0, 2) for epoch in range(2)]
    assert [0.5 * 0.5**epoch for epoch in epochs] == RATES


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

    follows(combine, 2, strategy=fl.FedMedian(), rounds=5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"local": replace(FABRIC, optimizer_state="kept", lr_decay=0.9)}, marks=pytest.mark.slow),
        {"availability": fl.Availability(leave=0.4)},
        {"personal": [fl.PersonalPart(names="net.3.*")]},
        {"clients_per_round": 5, "strategy": fl.AdaFed("val_acc")},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_equal_speeds_with_buffer_and_concurrency_of_the_cohort_are_synchronous_to_the_bit(settings):
    cohort = settings.get("clients_per_round", 3)
    settings = {name: value for name, value in settings.items() if name != "clients_per_round"}
    expected, _ = fitted(clients_per_round=cohort, **settings)
    found, run = fitted(asynchronous=fl.Asynchronous(cohort, cohort), **{"strategy": fl.FedBuff(), **settings})
    assert same_bits(found, expected)
    assert float(run.callback_metrics["federation/ticks"]) == 3000
    assert float(run.callback_metrics["federation/staleness_max"]) == 0


def test_privacy_of_examples_and_noise_at_the_clients_are_counted_for_each_training():
    """Equal speeds spend what synchronous rounds spend; otherwise the account has the updates that arrived, and their steps."""
    private = {
        "local": replace(FABRIC, privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7)),
        "transforms": [fl.ClientPrivacy(0.5, 0.3, "local", noise_seed=7)],
    }
    expected, run = fitted(module=Plain, clients_per_round=3, **private)
    found, other = fitted(module=Plain, strategy=fl.FedBuff(), asynchronous=fl.Asynchronous(3, 3), **private)
    assert same_bits(found, expected)
    for name in ("federation/epsilon_of_examples", "federation/epsilon_of_clients"):
        assert float(other.callback_metrics[name]) == float(run.callback_metrics[name]) > 0
    updates = Updates()
    availability = fl.Availability(clock=fl.Clock("lognormal", "half_normal"))
    settings = {"asynchronous": fl.Asynchronous(5, 2), "availability": availability, "strategy": fl.FedBuff()}
    _, run = fitted(6, Plain, [updates], **private, **settings)
    federation = next(callback for callback in run.callbacks if isinstance(callback, fl.FederatedOrchestrator))
    ((_, spent),) = federation._run.hooks["local.privacy"].spending.parts
    arrived = [u for each in updates.rounds for u in each]
    assert max(u.staleness for u in arrived) > 0
    assert spent.sent == Counter(u.client for u in arrived)
    assert spent.steps == {k: sum(u.num_steps for u in arrived if u.client == k) for k in spent.sent}


def test_slow_clients_do_all_their_steps_and_take_longer():
    updates, slow = Updates(), fl.Availability(slow=0.4, slowness=3)
    fitted(5, callbacks=[updates], strategy=fl.FedAsync(), asynchronous=fl.Asynchronous(), availability=slow)
    fast = [k for k in range(5) if k not in slow.slow_clients(5, 0)]
    assert [u.client for each in updates.rounds for u in each] == [*fast, *fast[:2]]  # tick 1000, then 2000
    assert all(u.num_steps == 2 * -(-u.num_examples // 5) for each in updates.rounds for u in each)


def test_lost_updates_leave_their_place_to_others_and_are_reported():
    updates, missed = Updates(), Missed()
    fitted(
        6,
        callbacks=[updates, missed],
        strategy=fl.FedBuff(),
        asynchronous=fl.Asynchronous(4, 2),
        availability=fl.Availability(drop_out=0.4, clock=fl.Clock(between_jobs="exponential")),
        faults=fl.Faults("skip"),
    )
    lost = fl.Availability(drop_out=0.4)
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
        strategy=fl.FedBuff(),
        asynchronous=fl.Asynchronous(5, 5),
        availability=fl.Availability(drop_out=0.4),
        faults=fl.Faults("skip"),
    )
    lost = fl.Availability(drop_out=0.4)
    for t, each in enumerate(updates.rounds):
        assert [u.client for u in each] == [k for k in range(5) if not lost.loses(k, 0, t)]
    assert min(map(len, updates.rounds)) < 5


def fails(self, batch, batch_idx):
    if self.trainer.num_training_batches == 5:
        raise RuntimeError("no power")
    return Plain.training_step(self, batch, batch_idx)


def test_a_client_that_fails_is_left_out():
    """Client 1, of 22 examples."""
    updates, missed, availability = Updates(), Missed(), fl.Availability(clock=fl.Clock(between_jobs="uniform"))
    settings = {"strategy": fl.FedBuff(), "asynchronous": fl.Asynchronous(5, 2), "faults": fl.Faults("skip")}
    fitted(6, variant(training_step=fails), [updates, missed], availability=availability, **settings)
    rounds = [t for t, client in missed.clients if client == 1]
    assert len(rounds) == len(missed.clients) >= 2
    assert [len(each) for each in updates.rounds] == [1 if t in rounds else 2 for t in range(6)]


def test_slow_clients_need_no_engine_that_stops_between_steps():
    settings = {"local": fl.LocalTraining(engine="stacked"), "availability": fl.Availability(slow=0.5)}
    assert federate(Plain(), 1, asynchronous=fl.Asynchronous(3, 2), strategy=fl.FedBuff(), **settings).global_step == 1


def test_draws_have_mean_one_and_belong_to_client_and_job():
    for name in ("uniform", "exponential", "half_normal", "lognormal"):
        jobs = np.array([fl.Clock(between_jobs=name).duration(k, t, [1] * 50, 7) for k in range(50) for t in range(80)]) / 1000
        variance = {"uniform": 1 / 12, "exponential": 1.0, "half_normal": np.pi / 2 - 1, "lognormal": np.e - 1}[name]
        assert abs(jobs.mean() - 1) < 5 * (variance / len(jobs)) ** 0.5
        assert 0.7 < jobs.var() / variance < 1.5
        assert jobs.min() >= 0.001
        clients = [[fl.Clock(between_clients=name).duration(k, t, [1] * 9, 7) for t in range(3)] for k in range(9)]
        assert len({tuple(each) for each in clients}) == 9
        assert all(len(set(each)) == 1 for each in clients)
    sizes = [10, 30, 20]
    assert [fl.Clock(ticks=100, by_examples=True).duration(k, 0, sizes, 0) for k in range(3)] == [50, 150, 100]
    assert fl.Clock(ticks=1).duration(0, 0, sizes, 0, 0.1) == 1


def test_synchronous_rounds_wait_for_the_last_client():
    clock = fl.Clock("lognormal", "uniform")
    updates = Updates()
    plain, _ = fitted(clients_per_round=3)
    found, run = fitted(callbacks=[updates], clients_per_round=3, availability=fl.Availability(clock=clock))
    assert same_bits(found, plain)
    ticks = [max(clock.duration(u.client, t, FIVE, 0) for u in each) for t, each in enumerate(updates.rounds)]
    assert float(run.callback_metrics["federation/ticks"]) == sum(ticks)
    assert "federation/staleness" not in run.callback_metrics
