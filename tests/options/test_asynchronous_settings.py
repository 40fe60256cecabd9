"""What asynchronous rounds and the simulated clock refuse, and why; how a resumed run compares them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from federations import Plain, every_round, federate

from fl_lightning import (
    ALIE,
    Asynchronous,
    Attackers,
    Availability,
    CheckpointError,
    ClientPrivacy,
    Clock,
    ConfigurationError,
    Faults,
    FedAsync,
    FedAvg,
    FedBuff,
    FedCyclic,
    FedDyn,
    FedNova,
    LocalTraining,
    PartialWork,
    Scaffold,
    SecureAggregation,
    TransferLearning,
)
from fl_lightning.options.asynchronous.server import AsynchronousAtServer

BUFFER = "federation.asynchronous.buffer"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Asynchronous(0),
            "'federation.asynchronous.concurrency' must be a fraction above 0 and at most 1.0, or a whole",
        ),
        (lambda: Asynchronous(1.5), "'federation.asynchronous.concurrency' must be .*, but is 1.5"),
        (lambda: Asynchronous(buffer=0), f"'{BUFFER}' must be a whole number of 1 or above, but is 0"),
        (lambda: Asynchronous(buffer=2.5), r"Asynchronous: 'buffer' must be a whole number, but is 2.5 \(a float\)"),
        (lambda: Clock("normal"), "'federation.clock.between_clients' must be one of constant, uniform, exponential"),
        (lambda: Clock(between_jobs="x"), "'federation.clock.between_jobs' must be one of"),
        (lambda: Clock(ticks=0), "'federation.clock.ticks' must be a whole number of 1 or above, but is 0"),
        (lambda: FedAsync(alpha=0), "'federation.strategy.alpha' must be above 0 and at most 1"),
        (lambda: FedAsync(staleness="linear"), "'federation.strategy.staleness' must be one of constant, polynomial, hinge"),
        (lambda: FedAsync(mixes="both"), "'federation.strategy.mixes' must be models or changes"),
        (lambda: FedBuff(a=-1), "'federation.strategy.a' must be 0 or above"),
        (lambda: FedBuff(b=-1), "'federation.strategy.b' must be a whole number of 0 or above"),
        (lambda: FedBuff(lr=0), "'federation.strategy.lr' must be above 0"),
        (lambda: FedBuff(momentum=1), "'federation.strategy.momentum' must be at least 0 and below 1"),
    ],
)
def test_a_value_outside_its_range(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"asynchronous": Asynchronous(4)}, "'federation.asynchronous.concurrency' must be a number of clients from 1 to 3"),
        ({"asynchronous": Asynchronous(2, 4)}, f"'{BUFFER}' must be at most 3, because each of the 3 clients has at most one"),
        ({"strategy": FedNova()}, "FedNova needs each client to train from the current global model"),
        ({"strategy": Scaffold()}, "Scaffold needs each client to train from the current global model"),
        ({"strategy": FedDyn()}, "FedDyn needs each client to train from the current global model"),
        ({"route": FedCyclic()}, "On the route FedCyclic clients wait for each other, but 'federation.asynchronous'"),
        ({"strategy": FedAsync(), "asynchronous": Asynchronous(3, 2)}, f"mixes every update .* '{BUFFER}' is 2. Set it to 1"),
        ({"clients_per_round": 2}, r"'federation.clients_per_round' \(2\) is the size .*, but .* no round draws a cohort"),
        (
            {"secure_aggregation": SecureAggregation()},
            "'federation.secure_aggregation' lets the clients of a round agree on masks, but with",
        ),
        (
            {"strategy": FedAvg("uniform"), "transforms": [ClientPrivacy(1.0, 1.0)]},
            "ClientPrivacy with noise at the server needs cohorts .* drawn from all clients, but .* Set its",
        ),
        (
            {"local": LocalTraining(max_epochs=2, partial_work=PartialWork(0.5))},
            "'federation.local.partial_work' needs .*, but .* no round draws",
        ),
        (
            {"attackers": Attackers(clients=[1], model=ALIE())},
            "'federation.attackers.model' ALIE reads the honest changes of a whole round, but with",
        ),
        ({"faults": Faults("skip", min_updates=3)}, "'federation.faults.min_updates' must be at most the 2 clients of a round"),
        (
            {"strategy": FedBuff(), "asynchronous": None},
            "FedBuff combines updates of asynchronous rounds, .* Set 'federation.asy",
        ),
        (
            {"strategy": FedAsync(), "asynchronous": None},
            "FedAsync combines updates of asynchronous rounds, .* Set 'federation.",
        ),
        (
            {"route": FedCyclic(), "asynchronous": None, "clock": Clock()},
            "On the route FedCyclic clients wait for each other, but 'federation.clock' does not simulate",
        ),
        (
            {"strategy": FedBuff(), "server_optimizer": lambda p: torch.optim.Adam(p)},
            "FedBuff has its own server optimizer, but 'federation.server_optimizer' is also set",
        ),
    ],
)
def test_what_does_not_work_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 1, **{"asynchronous": Asynchronous(3, 2), **settings})


def test_a_strategy_that_sends_more_than_the_model_is_refused():
    class Sends(FedAvg):
        def broadcast(self):
            return {"more": torch.zeros(67)}

    with pytest.raises(ConfigurationError, match=r"Sends sends tensors with each model \('broadcast'\), which belong to the"):
        federate(Plain(), 1, strategy=Sends(), asynchronous=Asynchronous(3, 2))


def test_an_all_client_strategy_is_refused():
    class Everyone(FedAvg):
        needs_all_clients = True

    with pytest.raises(ConfigurationError, match=r"Everyone needs every client in every round, but with 'federation.asynchro"):
        federate(Plain(), 1, strategy=Everyone(), asynchronous=Asynchronous(3, 2))


class Following(Plain):
    """A target follows the network."""

    def __init__(self):
        super().__init__()
        self.target = torch.nn.Linear(4, 8).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        self.target.weight.data = self.target.weight.data * 0.9
        return super().training_step(batch, batch_idx)


def test_moving_targets_are_refused():
    with pytest.raises(ConfigurationError, match=r"Training changes 'target.weight', .*, but 'federation.asynchronous'"):
        federate(Following(), 1, strategy=FedBuff(), asynchronous=Asynchronous(3, 2))


class Thawing(Plain):
    def configure_callbacks(self):
        return [TransferLearning(["net.0"], thaw_after=1)]


def test_parameters_that_thaw_while_a_client_trains_are_refused():
    with pytest.raises(
        ConfigurationError, match=r"changed since round 0, for example 'net.0..*', but asynchronous clients still"
    ):
        federate(Thawing(), 3, strategy=FedBuff(), asynchronous=Asynchronous(3, 1), clock=Clock("uniform"))


def test_several_ranks_are_no_faster_with_one_update_at_a_time():
    context = SimpleNamespace(settings=SimpleNamespace(strategy=FedAsync(), pool=None), trainer=SimpleNamespace(world_size=2))
    with pytest.warns(UserWarning, match=f"'{BUFFER}' is 1, so one client trains at a time, and 2 ranks are no faster"):
        AsynchronousAtServer(Asynchronous(), context)


def test_a_resumed_run_keeps_its_kind_of_rounds(tmp_path):
    settings = {"strategy": FedBuff(), "asynchronous": Asynchronous(3, 2)}
    saving = {"flags": {"enable_checkpointing": True}}
    federate(Plain(), 1, every_round(tmp_path), **settings, **saving)
    last = str(tmp_path / "last.ckpt")
    other = {
        "'federation.asynchronous.buffer' 2, but this run has 1": {"asynchronous": Asynchronous(3, 1)},
        "'federation.clock' None, but this run has 'Clock'": {"clock": Clock()},
        "'federation.strategy.a' 0.5, but this run has 0.4": {"strategy": FedBuff(a=0.4)},
    }
    for message, change in other.items():
        with pytest.raises(CheckpointError, match=message):
            federate(Plain(), 2, ckpt_path=last, **{**settings, **change})
        federate(Plain(), 2, ckpt_path=last, resume_changed=True, **{**settings, **change})
    with pytest.raises(
        CheckpointError, match=r"'federation.resume_changed' does not allow changes to .*'federation.asynchronous'"
    ):
        federate(Plain(), 2, ckpt_path=last, resume_changed=True)


def test_slow_clients_need_no_engine_that_stops_between_steps():
    settings = {"asynchronous": Asynchronous(3, 2), "availability": Availability(slow=0.5), "strategy": FedBuff()}
    federate(Plain(), 1, local=LocalTraining(engine="stacked"), **settings)
    with pytest.raises(ConfigurationError, match=r"'federation.availability.slow' is checked between a client's steps"):
        federate(Plain(), 1, local=LocalTraining(engine="stacked"), availability=Availability(slow=0.5))
