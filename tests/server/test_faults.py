"""Clients that fail, are slow or not there: what the round does without them, and what it says."""

from __future__ import annotations

import copy
import csv
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from against_hand import Updates, assert_follows, clients_of
from by_hand import World, averaged
from command_line import small
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    Availability,
    ClientError,
    ClientUpdate,
    FailureLog,
    Faults,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FedLoss,
    Focus,
    JointStrategy,
    LastClient,
    LocalTraining,
    Mediators,
    PartialWork,
    Scaffold,
    TopK,
    Transform,
)
from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.functional import ModelState, draw_cohort
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.messages import ServerModel
from fl_lightning.options.availability import settings as availability_module
from fl_lightning.server.sampling import ClientSampler

SKIP = Faults("skip")
MARK = 1e3
"""The client in the middle has inputs above it."""


class Marked(Blobs):
    def __init__(self, value: float = 2 * MARK, **more: Any) -> None:
        super().__init__(shuffle=False, **more)
        self.train[0][SIZES[0] : SIZES[0] + SIZES[1]] = value


TIMES = [math.inf]


class Fails(Plain):
    """Does something wrong in the marked client's first ``times`` fits."""

    wrong: Any = None

    def on_train_start(self) -> None:
        self._begins = True

    def training_step(self, batch, batch_idx):
        if batch[0].abs().max() > MARK:
            if self._begins and batch_idx == 0:
                TIMES[0] -= 1
            if TIMES[0] >= 0:
                self._begins = False
                type(self).wrong(self)
            return super().training_step((batch[0] / 1e3, batch[1]), batch_idx)
        return super().training_step(batch, batch_idx)


def failing(action, times=math.inf, **more):
    TIMES[0] = times
    return type("FailsSo", (Fails,), {"wrong": staticmethod(action)})(**more)


def raises(error):
    def action(module):
        raise error

    return action


def reshape(module):
    module.net[-1].weight = torch.nn.Parameter(torch.zeros(3, 9))


class Clock:
    """A time that passes only when it is told to: a busy machine must not make honest clients slow."""

    now = 0.0

    @classmethod
    def pass_by(cls, seconds):
        cls.now += seconds


WRONG = {
    "an exception": (raises(ZeroDivisionError("here")), "ZeroDivisionError: here"),
    "no memory": (raises(MemoryError()), "MemoryError"),
    "no memory on the GPU": (raises(torch.OutOfMemoryError("CUDA out of memory")), "OutOfMemoryError: CUDA out of memory"),
    "too slow": (
        lambda module: Clock.pass_by(1.1),
        "but 'federation.faults.deadline' (or 'policy.max_seconds' at a site) is 1",
    ),
}


def failed(run) -> list[tuple[int, int, str, int]]:
    (log,) = (callback for callback in run.callbacks if isinstance(callback, Heard))
    return log.failures


class Heard(FederationCallback):
    def __init__(self):
        self.failures = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.failures.append((failure.round_idx, failure.client, failure.cause, failure.attempts))


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
@pytest.mark.parametrize("kind", WRONG)
def test_a_round_goes_on_without_who_fails(kind, engine, monkeypatch):
    """What is left is FedAvg of the others, by hand, for three rounds; each failure is told."""
    monkeypatch.setattr("fl_lightning.clients.training.session.time", SimpleNamespace(perf_counter=lambda: Clock.now))
    action, cause = WRONG[kind]
    L.seed_everything(3, verbose=False)
    module, heard = failing(action), Heard()
    net = copy.deepcopy(module.net)
    faults = Faults("skip", deadline=1.0 if kind == "too slow" else None)
    with pytest.warns(UserWarning, match="Round 1 continues without client 1: "):
        federate(module, 3, heard, data=Marked(), faults=faults, local=LocalTraining(engine=engine, max_epochs=2))
    world = World(torch.float32)
    for _ in range(3):
        clients = [world.train(net, k)[0] for k in (0, 2)]
        net = averaged(net, clients, world.sizes[[0, 2]])
    for name, value in net.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=5e-6, atol=5e-6)
    assert [failure[:2] for failure in heard.failures] == [(0, 1), (1, 1), (2, 1)]
    assert all(cause in failure[2] for failure in heard.failures)


class BreaksOnTheWay(Transform):
    """Client 1's change is not finite in round 1, as the server reads it."""

    def apply(self, message, sender):
        broken = sender.client == 1 and sender.round_idx == 1
        return replace(message, change=message.change * math.nan) if broken else message


@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_client_keeps_nothing_of_an_update_that_was_rejected(engine):
    """Error feedback and c_k remain those of round 0 after an update that broke on its way."""
    transforms = [TopK(0.3), BreaksOnTheWay()]
    federation = FederatedOrchestrator(Scaffold(), LocalTraining(engine=engine), transforms=transforms, faults=SKIP)
    kept = []

    class Keeps(FederationCallback):
        def on_round_end(self, trainer, pl_module, round_idx):
            kept.append(federation._run.memory.state_dict())

    heard = Heard()
    with pytest.warns(UserWarning, match="Round 1 continues without client 1: .* not finite"):
        trainer(2, federation, heard, Keeps()).fit(Plain(), FederatedDataModule(Blobs(shuffle=False), Consecutive()))
    assert [failure[:2] for failure in heard.failures] == [(1, 1)]
    before, after = kept
    assert set(before[1]) == {"control", "transform 0 residual"}
    assert all(float(tensor.abs().max()) > 0 for tensor in before[1].values())
    assert same_bits(before[1], after[1])
    assert not same_bits(before[0], after[0])  # an update that was good


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_round_goes_on_without_who_diverges(engine, dtype):
    """NaN in the data of client 1; SCAFFOLD's control variates must not have heard of it either."""

    def step(net, world, t):
        return averaged(net, clients_of(net, world), world.sizes * [1, 0, 1])

    data = FederatedDataModule(Marked(math.nan, dtype=dtype), Consecutive())
    _, rounds = assert_follows(
        dtype, step, data=data, batchnorm=False, faults=SKIP, local=LocalTraining(engine=engine, max_epochs=2)
    )
    assert [[update.client for update in updates] for updates in rounds] == [[0, 2]] * 3
    federation = FederatedOrchestrator(Scaffold(), LocalTraining(engine=engine), faults=SKIP)
    module = Plain().to(dtype)
    run = trainer(2, federation, precision="64-true" if dtype == torch.float64 else "32-true")
    run.fit(module, FederatedDataModule(Marked(math.nan, dtype=dtype), Consecutive()))
    assert "control" not in federation._run.memory.kept(1)
    assert "control" in federation._run.memory.kept(0)
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


@pytest.mark.parametrize("alone", [False, True], ids=["among others", "alone"])
@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_who_diverges_ends_the_run_by_its_name(engine, alone):
    sizes = (20,) if alone else SIZES
    data = Marked(math.nan)
    data.train = tuple(tensor[SIZES[0] :] for tensor in data.train) if alone else data.train
    client = 0 if alone else 1
    with pytest.raises(ClientError, match=rf"Client {client} \(of 20 examples\) in round 0: the training loss is nan") as told:
        federate(Plain(), 1, data=data, partitioner=Consecutive(sizes), local=LocalTraining(engine=engine))
    assert vars(told.value)["__notes__"] == [f"In round 0, client {client}."]


def test_what_stops_stacked_clients_ends_the_run_by_the_name_of_the_one_that_caused_it():
    class Unreadable(Plain):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            if batch[0].abs().max() > MARK:
                raise ZeroDivisionError("here")
            return batch

    with pytest.raises(ZeroDivisionError, match="here") as told:
        federate(Unreadable(), 1, data=Marked(), local=LocalTraining(engine="stacked"))
    assert vars(told.value)["__notes__"] == ["In round 0, client 1."]


def test_what_has_another_shape_is_never_aggregated():
    """A client that rebuilds the network spoils it for all: the run ends."""
    with pytest.raises(ClientError, match="Round 0: 0 of 3 updates are valid"):
        federate(failing(reshape), 1, data=Marked(), faults=SKIP)
    server = ModelState(Plain())
    check = UpdateCheck(server, ServerModel(1, 2, server.tensors(), server.layout))
    good = ClientUpdate(4, 2, 10, 1, model=server.snapshot())
    assert check(good).update_norm == 0
    for state in (server.vector()[1:], server.vector()[None], server.vector().long()):
        with pytest.raises(ClientError, match=r"Client 4 .* in round 2: it sent torch.* the model has 67 weights"):
            check(good.with_state(state))


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_who_tries_again_comes_to_what_it_would_have_come_to(engine):
    """Fails once, then nothing was lost: bit for bit; told only what was lost."""
    finals = []
    for times in (0, 1):
        L.seed_everything(3, verbose=False)
        module, heard = failing(WRONG["an exception"][0], times, batchnorm=True), Heard()
        faults = Faults(retries=1)
        federate(module, 2, heard, data=Marked(), faults=faults, local=LocalTraining(engine=engine, max_epochs=2))
        finals.append(weights(module))
        assert not heard.failures
    assert same_bits(*finals)


def test_attempts_are_counted():
    heard = Heard()
    with pytest.warns(UserWarning, match="continues without client 1 after 3 attempts: ZeroDivisionError: here"):
        federate(failing(WRONG["an exception"][0]), 1, heard, data=Marked(), faults=Faults("skip", retries=2))
    assert heard.failures[0][3] == 3


def test_without_a_policy_the_clients_error_ends_the_run():
    with pytest.raises(ZeroDivisionError, match="here"):
        federate(failing(WRONG["an exception"][0]), 1, data=Marked())


def test_too_few_good_updates_end_the_run():
    message = (
        r"Round 0: 2 of 3 updates are valid, but the round needs 3 \('federation.faults.min_updates'\). Failed: client 1: Zero"
    )
    with pytest.raises(ClientError, match=message):
        federate(failing(WRONG["an exception"][0]), 1, data=Marked(), faults=Faults("skip", min_updates=1.0))


def test_wrong_settings_are_no_clients_fault():
    with pytest.raises(Exception, match="nosuch"):
        federate(Plain(), 1, faults=SKIP, strategy=FedAvg(), local=LocalTraining(), server_optimizer=lambda p: nosuch)  # noqa: F821


def test_a_chain_goes_on_from_who_came_before():
    """Mediators: one group of all three in order; the client in the middle is left out."""
    L.seed_everything(3, verbose=False)
    module = failing(WRONG["an exception"][0])
    net = copy.deepcopy(module.net)
    updates = Updates()
    with pytest.warns(UserWarning, match="continues without client 1"):
        federate(module, 1, updates, data=Marked(), route=Mediators(3), faults=SKIP)
    order = [update.client for update in updates.rounds[0]]
    assert order == [0, 2]
    world = World(torch.float32)
    errors = []
    for first, second in ((0, 2), (2, 0)):
        last = world.train(world.train(net, first)[0], second)[0]
        pairs = zip(last.parameters(), module.net.parameters(), strict=True)
        errors.append(max(float((a - b).abs().max()) for a, b in pairs))
    assert min(errors) < 5e-6


class Unreadable(TensorDataset):
    def __getitem__(self, index):
        if index == SIZES[0] or index == [SIZES[0]]:
            raise OSError("cannot be read")
        return super().__getitem__(index)


class WithUnreadable(Blobs):
    def train_dataloader(self):
        return DataLoader(Unreadable(*self.train), batch_size=5)


@pytest.mark.parametrize("strategy", [FedAvg, Focus])
def test_examples_that_cannot_be_read(strategy):
    """Also where the global model is measured on them before anything trains."""
    updates = Updates()
    with pytest.warns(UserWarning, match="Round 0 continues without client 1: OSError: cannot be read"):
        federate(Plain(), 1, updates, data=WithUnreadable(shuffle=False), strategy=strategy(), faults=SKIP)
    assert [update.client for update in updates.rounds[0]] == [0, 2]


class Sees(Heard):
    """Whose Trainer the user's datamodule has, where a client has failed."""

    def on_client_failed(self, trainer, pl_module, failure):
        super().on_client_failed(trainer, pl_module, failure)
        assert trainer.datamodule.datamodule.trainer is trainer


def test_the_last_client_must_not_fail():
    """With this seed client 1, the marked one, is drawn as the last one first; the rounds in which it is not go on."""
    drawn = [derive_seed(0, round_idx, "last") % 3 for round_idx in range(8)]
    first = drawn.index(1)
    federate(failing(WRONG["an exception"][0]), first, data=Marked(), strategy=LastClient(), faults=SKIP)
    with pytest.raises(ClientError, match=rf"LastClient drew client 1 as the last one of round {first}, but .* 'federation"):
        federate(failing(WRONG["an exception"][0]), first + 1, data=Marked(), strategy=LastClient(), faults=SKIP)


def test_stacked_clients_fail_each_for_itself():
    """Client 1's data cannot be read: the two others of its stack stay in the round, with the weights of two clients."""
    sees = Sees()
    with pytest.warns(UserWarning, match="without client 1"):
        federate(Plain(), 1, sees, data=WithUnreadable(shuffle=False), faults=SKIP, local=LocalTraining(engine="stacked"))
    assert [failure[:2] for failure in sees.failures] == [(0, 1)]


@pytest.mark.filterwarnings("ignore:Round .* continues without")
@pytest.mark.parametrize("strategy", [FedAvg, Focus])  # FOCUS evaluates before it trains
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_client_that_failed_leaves_the_datamodule_its_trainer(engine, strategy):
    data, sees = WithUnreadable(shuffle=False), Sees()
    run = federate(Plain(), 2, sees, data=data, strategy=strategy(), faults=SKIP, local=LocalTraining(engine=engine))
    assert [failure[:2] for failure in sees.failures] == [(0, 1), (1, 1)]
    assert data.trainer is run


@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_run_that_ends_with_a_client_s_error_leaves_the_datamodule_its_trainer(engine):
    data = WithUnreadable(shuffle=False)
    run = trainer(1, FederatedOrchestrator(local=LocalTraining(engine=engine)))
    with pytest.raises(OSError, match="cannot be read"):
        run.fit(Plain(), FederatedDataModule(data, Consecutive()))
    assert data.trainer is run


def test_who_cannot_even_begin_tries_again():
    """FOCUS reads the client's data before it trains: the cause of the last attempt is that of the first."""
    heard = Heard()
    with pytest.warns(UserWarning, match="after 3 attempts: OSError: cannot be read"):
        federate(Plain(), 1, heard, data=WithUnreadable(shuffle=False), strategy=Focus(), faults=Faults("skip", retries=2))
    assert [failure[2:] for failure in heard.failures] == [("OSError: cannot be read", 3)]


def test_stacked_clients_hand_in_stack_by_stack(monkeypatch):
    """The strategy has a client's model before the next stack trains, so that a round's models are never all in memory."""
    events = []
    train = LocalTrainer.train

    def watched(self, *args):
        for trained in train(self, *args):
            events.append(("trained", trained.update.client))
            yield trained

    class Ends(FederationCallback):
        def on_client_end(self, trainer, pl_module, update):
            events.append(("handed in", update.client))

    monkeypatch.setattr(LocalTrainer, "train", watched)
    federate(Plain(), 1, Ends(), local=LocalTraining(engine="stacked", stack_size=1))
    assert [what for what, _ in events] == ["trained", "handed in"] * 3
    assert [client for _, client in events[::2]] == [client for _, client in events[1::2]]


def test_stragglers_that_are_dropped_count_as_drawn():
    """Two of three are needed; one is dropped and one fails."""
    local = LocalTraining(max_epochs=2, partial_work=PartialWork(0.34, "drop"))
    for seed in range(20):
        context = SimpleNamespace(settings=SimpleNamespace(local=local), cohort=3)
        hooks = [local.partial_work.at_server(context)]
        drawing = ClientSampler(num_clients=3, clients_per_round=1.0, faults=Faults(), seed=seed, hooks=hooks)
        if 1 in drawing.round(0).clients:
            break
    with pytest.raises(ClientError, match="Round 0: 1 of 3 updates are valid, but the round needs 2"):
        federate(Plain(), 1, data=Marked(math.nan), faults=Faults("skip", min_updates=0.5), local=local, seed=seed)


class Weightless(JointStrategy):
    def combine(self, updates, worth):
        return updates[0].state.double(), [math.nan] * len(updates)


def test_a_strategy_that_gives_no_weights_is_named():
    with pytest.raises(ClientError, match="Weightless gave 3 updates the weights"):
        federate(Plain(), 1, strategy=Weightless())


def test_a_second_fit_after_one_that_failed(tmp_path):
    """What clients had changed when it failed is not looked for again."""
    federation = FederatedOrchestrator(Scaffold(), clients_per_round=1)
    memory = federation._run.memory
    memory.put(2, control=torch.ones(3))
    memory.load_state_dict({})
    assert memory.changes() == ({}, {})


# ------------------------------------------------------------------ simulated availability


def test_half_the_speed_is_half_the_steps():
    """Two epochs are 4, 8 and 6 steps; all clients are three times slower: 1, 2 and 2."""
    for engine in ("trainer", "fabric"):
        updates = Updates()
        slow = Availability(slow=1.0, slowness=3.0)
        federate(Plain(), 2, updates, availability=slow, local=LocalTraining(engine=engine, max_epochs=2))
        assert [[update.num_steps for update in r] for r in updates.rounds] == [[1, 2, 2]] * 2


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_slow_client_does_the_first_steps_of_a_fast_one(engine):
    local = {"engine": engine, "max_epochs": 2}
    finals = []
    for more in ({"availability": Availability(slow=1.0, slowness=6.0)}, {"limit": 1}):
        L.seed_everything(3, verbose=False)
        module = Plain()
        steps = LocalTraining(**local, max_steps=1) if more.pop("limit", None) else LocalTraining(**local)
        federate(module, 3, local=steps, **more)
        finals.append(weights(module))
    assert same_bits(*finals)


@given(st.integers(1, 60), st.floats(0.05, 1), st.floats(0.05, 1), st.integers(0, 99), st.integers(0, 20))
def test_who_is_there(clients, leave, back, seed, round_idx):
    availability = Availability(leave=leave, come_back=back, drop_out=0.3)
    there = next(islice(availability.present(clients, seed), round_idx, None))
    assert there == sorted(set(there))
    assert set(there) <= set(range(clients))
    assert round_idx or len(there) == clients
    cohort = draw_cohort(clients, 0.5, seed, round_idx, there)
    assert set(cohort) <= set(there)
    assert len(cohort) == min(len(there), max(1, round(0.5 * clients)))
    assert availability.dropped_out(cohort, seed, round_idx) <= set(cohort)


def test_a_round_draws_who_comes_and_goes_once(monkeypatch):
    """However many rounds came before; also where rounds are left out, and from the beginning again."""
    draws = []
    draw = availability_module.generator
    monkeypatch.setattr(availability_module, "generator", lambda *key: draws.append(key) or draw(*key))
    context = SimpleNamespace(data=SimpleNamespace(num_clients=30), seed=3, synchronous=True)

    def sampler():
        hooks = [Availability(leave=0.2, come_back=0.4).at_server(context)]
        return ClientSampler(num_clients=30, clients_per_round=0.5, faults=Faults(), seed=3, hooks=hooks)

    drawing = sampler()
    found = [drawing.round(round_idx).clients for round_idx in range(50)]
    assert len([key for key in draws if key[-1] == "coming and going"]) == 49
    assert [sampler().round(round_idx).clients for round_idx in (49, 7)] == [found[49], found[7]]
    assert drawing.round(12).clients == found[12]


def test_shares_in_the_long_run():
    availability = Availability(leave=0.1, come_back=0.3, drop_out=0.3, slow=0.25)
    there = [len(next(islice(availability.present(100, seed), 60, None))) for seed in range(40)]
    assert sum(there) / 4000 == pytest.approx(0.3 / 0.4, abs=0.02)
    lost = [len(availability.dropped_out(range(100), 0, r)) for r in range(100)]
    assert sum(lost) / 10_000 == pytest.approx(0.3, abs=0.02)
    assert len(availability.slow_clients(100, 0)) == 25


def test_drop_outs_are_told_and_do_not_train(tmp_path):
    heard, updates = Heard(), Updates()
    run = federate(
        Plain(), 6, heard, updates, FailureLog(), availability=Availability(drop_out=0.4), flags={"default_root_dir": tmp_path}
    )
    assert heard.failures
    for round_idx, clients in enumerate([u.client for u in r] for r in updates.rounds):
        lost = [client for r, client, *_ in heard.failures if r == round_idx]
        assert sorted(lost + clients) == [0, 1, 2]
    assert {cause for _, _, cause, _ in heard.failures} == {"dropped out (simulated)"}
    assert float(run.callback_metrics["federation/failures"]) == sum(r == 5 for r, *_ in heard.failures)
    with (tmp_path / "failures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["round"]), int(row["client"])) for row in rows] == [failure[:2] for failure in heard.failures]


def test_failures_go_by_the_clients_names(tmp_path):
    sets = {name: TensorDataset(*Blobs(8 + k).train) for k, name in enumerate("abc")}
    data = FederatedDataModule.from_clients(sets, val=TensorDataset(*Blobs().val), batch_size=5)
    settings = {"availability": Availability(drop_out=0.3), "local": LocalTraining()}
    run = trainer(4, FailureLog(), FederatedOrchestrator(**settings), default_root_dir=tmp_path)
    run.fit(Plain(), data)
    with (tmp_path / "failures.csv").open(newline="") as file:
        assert {row["client"] for row in csv.DictReader(file)} <= set("abc")


def test_a_resumed_run_lists_its_failures_once(tmp_path):
    (tmp_path / "failures.csv").write_text("round,client,attempts,cause\n0,1,1,x\n1,2,1,y\n5,0,1,z\n")
    log = FailureLog()
    run = trainer(3, log, default_root_dir=tmp_path)
    run.fit_loop.epoch_progress.current.processed = run.fit_loop.epoch_progress.current.completed = 2
    log.on_train_start(run, Plain())
    assert (tmp_path / "failures.csv").read_text().split() == ["round,client,attempts,cause", "0,1,1,x", "1,2,1,y"]


@pytest.mark.filterwarnings("ignore:Round .* continues without")
def test_nearly_a_third_fails_in_ten_rounds():
    """30 % of ten clients fail at random in each round: the accuracy stays within 3 points of the undisturbed run's."""
    accuracy = {}
    for share in (0.0, 0.3):
        L.seed_everything(3, verbose=False)
        module, heard = Plain(lr=0.1), Heard()
        draw = torch.Generator().manual_seed(0)

        def fail_at_random(trainer, pl_module, batch, batch_idx, draw=draw, share=share):
            if batch_idx == 0 and float(torch.rand((), generator=draw)) < share:
                raise RuntimeError("at random")

        stop = type("AtRandom", (L.Callback,), {"on_train_batch_start": staticmethod(fail_at_random)})()
        federation = FederatedOrchestrator(
            local=LocalTraining(callbacks=[stop]), faults=Faults("skip", min_updates=0.3), seed=1
        )
        run = trainer(10, federation, heard)
        run.fit(module, FederatedDataModule(Blobs(n=200), Consecutive((20,) * 10)))
        accuracy[share] = float(run.callback_metrics["val_acc"])
        assert (0.2 < len(heard.failures) / 100 < 0.4) if share else not heard.failures
        assert all(cause == "RuntimeError: at random" for _, _, cause, _ in heard.failures)
    assert accuracy[0.0] > 0.8
    assert abs(accuracy[0.3] - accuracy[0.0]) < 0.03


# ------------------------------------------------------------------ wrong settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--federation.faults.policy=ignore"], "federation.faults.policy"),
        (["--federation.faults.retries=-1"], "'federation.faults.retries' must be a whole number of 0 or above, but is -1"),
        (["--federation.faults.min_updates=0"], "'federation.faults.min_updates' must be a number of 1 or above, or a share"),
        (["--federation.faults.min_updates=7"], "'federation.faults.min_updates' must be at most the 6 clients of a round"),
        (["--federation.faults.deadline=0"], "'federation.faults.deadline' must be above 0 seconds, or null"),
        (["--federation.availability.drop_out=1"], "'federation.availability.drop_out' must be from 0 to below 1"),
        (["--federation.availability.slow=2"], "'federation.availability.slow' must be from 0 to 1"),
        (["--federation.availability.slowness=0.5"], "'federation.availability.slowness' must be 1 or above"),
        (["--federation.availability.leave=2"], "'federation.availability.leave' must be from 0 to 1"),
        (["--federation.availability.come_back=0"], "'federation.availability.come_back' must be above 0 and at most 1"),
        (
            ["--federation.faults.policy=skip", "--federation.route=FedCyclic"],
            "FedCyclic needs every client in every round",
        ),
        (
            ["--federation.availability.leave=0.1", "--federation.route=LocalOnly"],
            "'federation.availability' may lose some",
        ),
        (
            ["--federation.faults.deadline=9", "--federation.local.engine=stacked"],
            "'federation.faults.deadline' is checked between a client's steps, but the engine 'stacked'",
        ),
        (
            ["--federation.availability.slow=1", "--federation.local.engine=fastest"],
            "'federation.availability.slow' is checked between",
        ),
        (
            ["--federation.availability.drop_out=0.99", "--federation.faults.min_updates=6"],
            "of 6 clients are available, but the round needs 6. Lower 'federation.faults.min_updates'",
        ),
    ],
)
def test_wrong_settings_are_named(fl, options, message):
    status, text = small(fl, *options, "--federation.strategy=FedAvg", "--model.init_args.loss=CrossEntropy")
    assert status in (1, 2)
    assert message in text
    assert "Traceback" not in text


def test_from_the_command_line(fl):
    status, text = small(
        fl, "--federation.availability.drop_out=0.4", "--federation.faults.policy=skip", "--trainer.max_epochs=3"
    )
    assert status == 0, text
    rows = Path("runs/adafed_mnist/failures.csv").read_text().splitlines()
    assert rows[0] == "round,client,attempts,cause"
    assert all(row.endswith("0,dropped out (simulated)") for row in rows[1:])
    assert len(rows) > 1


def test_fedloss_still_sees_what_it_rejects():
    """A strategy that copes with models that are not finite gets them."""
    data = FederatedDataModule(Marked(math.nan), Consecutive(), client_validation=0.2)
    with pytest.warns(UserWarning, match="FedLoss rejects the update of client 1"):
        trainer(1, FederatedOrchestrator(FedLoss(), faults=SKIP)).fit(Plain(), data)
