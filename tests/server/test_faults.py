"""Clients that fail, are slow, or come and go: what the round does without them, and what it says."""

import copy
import csv
import math
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from against_hand import Updates, assert_close, assert_follows, clients_of
from by_hand import World, averaged
from federations import SIZES, Blobs, Consecutive, Plain, changed, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    Availability,
    ClientError,
    ClientUpdate,
    Faults,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FederationReport,
    Focus,
    LastClient,
    LocalTraining,
    Mediators,
    Scaffold,
    TopK,
    Transform,
)
from fl_lightning.clients.judging import UpdateEditor
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.messages import ServerModel
from fl_lightning.types import Snapshot

SKIP = Faults("skip")
MARK = 1e3
"""The client in the middle has inputs above it."""


class Marked(Blobs):
    def __init__(self, value: float = 2 * MARK, **more: Any) -> None:
        super().__init__(shuffle=False, **more)
        self.train[0][SIZES[0] : SIZES[0] + SIZES[1]] = value


class Clock:
    """A time that passes only when it is told to: a busy machine must not make honest clients slow."""

    now = 0.0

    @classmethod
    def pass_by(cls, seconds):
        cls.now += seconds


class Fails(Plain):
    """Does something wrong in the marked client's first ``times`` fits."""

    def __init__(self, wrong, times=math.inf, **more) -> None:
        super().__init__(**more)
        self.wrong = wrong
        TIMES[0] = times

    def on_train_start(self) -> None:
        self._begins = True

    def training_step(self, batch, batch_idx):
        if batch[0].abs().max() > MARK:
            if self._begins and batch_idx == 0:
                TIMES[0] -= 1
            if TIMES[0] >= 0:
                self._begins = False
                self.wrong(self)
            return super().training_step((batch[0] / 1e3, batch[1]), batch_idx)
        return super().training_step(batch, batch_idx)


TIMES = [math.inf]


def raises(error):
    def action(module):
        raise error

    return action


BROKEN = raises(ZeroDivisionError("here"))
WRONG = {
    "an exception": (BROKEN, "ZeroDivisionError: here"),
    "no memory": (raises(MemoryError()), "MemoryError"),
    "no memory on the GPU": (raises(torch.OutOfMemoryError("CUDA out of memory")), "OutOfMemoryError: CUDA out of memory"),
    "too slow": (
        lambda module: Clock.pass_by(1.1),
        "but 'federation.faults.deadline' is 1 s (at a site, at most 'policy.machine.hours'). Raise it, or let clients do",
    ),
}


class Heard(FederationCallback):
    def __init__(self):
        self.failures = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.failures.append((failure.round_idx, failure.client, failure.cause, failure.attempts))


@pytest.mark.parametrize(
    ("kind", "engine"), [*((kind, "fabric") for kind in WRONG), ("an exception", "trainer"), ("too slow", "trainer")]
)
def test_a_round_goes_on_without_who_fails(kind, engine, monkeypatch):
    """What is left is FedAvg of the others, by hand, for three rounds; each failure is told."""
    monkeypatch.setattr("fl_lightning.clients.session.time", SimpleNamespace(perf_counter=lambda: Clock.now))
    action, cause = WRONG[kind]
    L.seed_everything(3, verbose=False)
    module, heard = Fails(action), Heard()
    net = copy.deepcopy(module.net)
    faults = Faults("skip", deadline=1.0 if kind == "too slow" else None)
    with pytest.warns(UserWarning, match="Round 1 continues without client 1: "):
        federate(module, 3, heard, data=Marked(), faults=faults, local=LocalTraining(engine=engine, max_epochs=2))
    world = World(torch.float32)
    for _ in range(3):
        net = averaged(net, [world.train(net, k)[0] for k in (0, 2)], world.sizes[[0, 2]])
    assert_close(net.state_dict(), module.net.state_dict(), 5e-6)
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
    assert before[1].keys() == {"rules", "transform 0"}
    for owner, name in (("rules", "control"), ("transform 0", "residual")):
        assert float(before[1][owner][name].abs().max()) > 0
        assert same_bits(before[1][owner], after[1][owner])
        assert not same_bits(before[0][owner], after[0][owner])  # an update that was good


@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_round_goes_on_without_who_diverges(engine):
    """NaN in the data of client 1; SCAFFOLD's control variates must not have heard of it either."""

    def step(net, world, t):
        return averaged(net, clients_of(net, world), world.sizes * [1, 0, 1])

    data, local = FederatedDataModule(Marked(math.nan), Consecutive()), LocalTraining(engine=engine, max_epochs=2)
    _, rounds = assert_follows(torch.float32, step, data=data, batchnorm=False, faults=SKIP, local=local)
    assert [[update.client for update in updates] for updates in rounds] == [[0, 2]] * 3
    federation, module = FederatedOrchestrator(Scaffold(), local, faults=SKIP), Plain()
    trainer(2, federation).fit(module, FederatedDataModule(Marked(math.nan), Consecutive()))
    assert "rules" not in federation._run.memory.kept(1)
    assert "control" in federation._run.memory.kept(0)["rules"]
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


def test_what_has_another_shape_is_never_aggregated():
    """A client that rebuilds the network spoils it for all: the run ends."""

    def reshape(module):
        module.net[-1].weight = torch.nn.Parameter(torch.zeros(3, 9))

    with pytest.raises(ClientError, match="Round 0: 0 of 3 updates are valid"):
        federate(Fails(reshape), 1, data=Marked(), faults=SKIP)
    server = ModelState(Plain())
    check = UpdateEditor(server, ServerModel(1, 2, server.tensors(), server.layout)).check
    good = ClientUpdate(4, 2, 10, 1, model=Snapshot(server.vector(), server.counters()))
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
        module, heard = Fails(BROKEN, times, batchnorm=True), Heard()
        local = LocalTraining(engine=engine, max_epochs=2)
        federate(module, 2, heard, data=Marked(), faults=Faults(retries=1), local=local)
        finals.append(weights(module))
        assert not heard.failures
    assert same_bits(*finals)


def test_attempts_are_counted_and_without_a_policy_the_error_ends_the_run():
    heard = Heard()
    with pytest.warns(UserWarning, match="continues without client 1 after 3 attempts: ZeroDivisionError: here"):
        federate(Fails(BROKEN), 1, heard, data=Marked(), faults=Faults("skip", retries=2))
    assert heard.failures[0][3] == 3
    with pytest.raises(ZeroDivisionError, match="here"):
        federate(Fails(BROKEN), 1, data=Marked())


def test_too_few_good_updates_end_the_run():
    message = (
        r"Round 0: 2 of 3 updates are valid, but the round needs 3 \('federation.faults.min_updates'\). Failed: client 1: Zero"
    )
    with pytest.raises(ClientError, match=message):
        federate(Fails(BROKEN), 1, data=Marked(), faults=Faults("skip", min_updates=1.0))


def test_a_chain_goes_on_from_who_came_before():
    """Mediators: one group of all three in order; the client in the middle is left out."""
    L.seed_everything(3, verbose=False)
    module, updates, world = Fails(BROKEN), Updates(), World(torch.float32)
    net = copy.deepcopy(module.net)
    with pytest.warns(UserWarning, match="continues without client 1"):
        federate(module, 1, updates, data=Marked(), route=Mediators(3), faults=SKIP)
    assert [update.client for update in updates.rounds[0]] == [0, 2]
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


@pytest.mark.filterwarnings("ignore:Round .* continues without")
@pytest.mark.parametrize(
    ("engine", "strategy"), [("trainer", FedAvg), ("trainer", Focus), ("fabric", FedAvg), ("stacked", FedAvg)]
)
def test_examples_that_cannot_be_read(engine, strategy):
    """Also where the global model is measured on them before anything trains; stacked clients fail each for itself.

    Where it is told, and after it, the user's datamodule has its Trainer.
    """
    trainers = []

    class Sees(Heard):
        def on_client_failed(self, trainer, pl_module, failure):
            super().on_client_failed(trainer, pl_module, failure)
            trainers.append(trainer.datamodule.datamodule.trainer)

    data, sees, updates = changed("train", DataLoader(Unreadable(*Blobs().train), batch_size=5)), Sees(), Updates()
    local = LocalTraining(engine=engine)
    faults = Faults("skip", retries=0 if engine == "stacked" else 2)
    run = federate(Plain(), 2, sees, updates, data=data, strategy=strategy(), faults=faults, local=local)
    assert [[update.client for update in each] for each in updates.rounds] == [[0, 2]] * 2
    assert [failure[:3] for failure in sees.failures] == [(r, 1, "OSError: cannot be read") for r in range(2)]
    assert {failure[3] for failure in sees.failures} == {1 if engine == "stacked" else 3}
    assert trainers == [run] * 2
    assert data.trainer is run


def test_the_last_client_must_not_fail():
    """With this seed client 1, the marked one, is drawn as the last one first; the rounds in which it is not go on."""
    drawn = [derive_seed(0, round_idx, "last") % 3 for round_idx in range(8)]
    first = drawn.index(1)
    federate(Fails(BROKEN), first, data=Marked(), strategy=LastClient(), faults=SKIP)
    with pytest.raises(ClientError, match=rf"LastClient drew client 1 as the last one of round {first}, but .* 'federation"):
        federate(Fails(BROKEN), first + 1, data=Marked(), strategy=LastClient(), faults=SKIP)


def test_the_error_of_an_update_that_cannot_be_sent_names_its_client():
    with pytest.raises(ClientError, match="not finite") as found:
        federate(Plain(), 2, transforms=[BreaksOnTheWay()])
    assert "In round 1, client 1." in found.value.__notes__


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_slow_client_does_the_first_steps_of_a_fast_one(engine):
    """Two epochs are 4, 8 and 6 steps; all clients are six times slower: 1 each; three times: 1, 2 and 2."""
    finals = []
    for slowness, steps in ((6.0, -1), (1.0, 1)):
        L.seed_everything(3, verbose=False)
        module, slow = Plain(), Availability(slow=1.0, slowness=slowness)
        federate(module, 3, local=LocalTraining(engine=engine, max_epochs=2, max_steps=steps), availability=slow)
        finals.append(weights(module))
    assert same_bits(*finals)
    updates, slow = Updates(), Availability(slow=1.0, slowness=3.0)
    federate(Plain(), 2, updates, availability=slow, local=LocalTraining(engine=engine, max_epochs=2))
    assert [[update.num_steps for update in r] for r in updates.rounds] == [[1, 2, 2]] * 2


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


def test_shares_in_the_long_run():
    availability = Availability(leave=0.1, come_back=0.3, drop_out=0.3, slow=0.25)
    there = [len(next(islice(availability.present(100, seed), 60, None))) for seed in range(40)]
    assert sum(there) / 4000 == pytest.approx(0.3 / 0.4, abs=0.02)
    lost = [len(availability.dropped_out(range(100), 0, r)) for r in range(100)]
    assert sum(lost) / 10_000 == pytest.approx(0.3, abs=0.02)
    assert len(availability.slow_clients(100, 0)) == 25


def test_drop_outs_are_told_and_do_not_train(tmp_path):
    heard, updates, x_y = Heard(), Updates(), Blobs().train
    sets = {name: TensorDataset(*(t[k : 30 + k] for t in x_y)) for k, name in enumerate("abc")}
    data = FederatedDataModule.from_clients(sets, val=TensorDataset(*Blobs().val), batch_size=5)
    federation = FederatedOrchestrator(availability=Availability(drop_out=0.4), local=LocalTraining())
    run = trainer(6, federation, heard, updates, FederationReport(), default_root_dir=tmp_path)
    run.fit(Plain(), data)
    assert heard.failures
    for round_idx, clients in enumerate([u.client for u in r] for r in updates.rounds):
        lost = [client for r, client, *_ in heard.failures if r == round_idx]
        assert sorted(lost + clients) == [0, 1, 2]
    assert {cause for _, _, cause, _ in heard.failures} == {"dropped out (simulated)"}
    assert float(run.callback_metrics["federation/failures"]) == sum(r == 5 for r, *_ in heard.failures)
    with (tmp_path / "failures.csv").open(newline="") as file:
        rows = [(int(row["round"]), row["client"], row["attempts"], row["cause"]) for row in csv.DictReader(file)]
    assert rows == [(r, "abc"[client], "0", "dropped out (simulated)") for r, client, *_ in heard.failures]


def test_a_resumed_run_lists_its_failures_once(tmp_path):
    (tmp_path / "failures.csv").write_text("round,client,attempts,cause\n0,1,1,x\n1,2,1,y\n5,0,1,z\n")
    log = FederationReport()
    log.on_round_start(trainer(3, log, default_root_dir=tmp_path), Plain(), 2, ())
    assert (tmp_path / "failures.csv").read_text().split() == ["round,client,attempts,cause", "0,1,1,x", "1,2,1,y"]
