"""Strategies and rules: wrong settings and what they do not go with."""

from __future__ import annotations

from typing import Any

import torch
from against_hand import combine
from engine_runs import optimized, variant
from federations import Plain
from refusing import Refusal, fitting

import fl_lightning as fl
from fl_lightning.strategies.filtering import FilteringStrategy
from fl_lightning.types import Snapshot

ZEROS, NOT_NUMBERS = torch.zeros(3), torch.full((3,), torch.nan)


def with_loss(value: float) -> Any:
    """A module whose validation loss is this."""
    return variant(validation_step=lambda self, batch, batch_idx: self.log("val_loss", torch.tensor(value), batch_size=1))


def own(base: type, **methods: Any) -> Any:
    """A strategy of a user's own, with these methods in place of its base's."""
    return type("Own", (base,), methods)()


def changed(base: type, name: str, change: Any) -> Any:
    """A strategy of a user's own whose method returns what ``change`` makes of its base's result."""
    usual = getattr(base, name)
    return own(base, **{name: lambda self, *args: change(usual(self, *args))})


def with_state(change: Any) -> Any:
    """A rule of a user's own that returns another state."""
    return changed(fl.FedMedian, "combine", lambda both: (change(both[0]), both[1]))


def filtering(answer: Any) -> Any:
    """A filter of a user's own, whose weights are what it makes of the numbers of examples."""
    return own(FilteringStrategy, weights=lambda self, products, examples: answer(examples))


def weighing(score: float) -> None:
    """Let AdaFed weigh a client of this score, the lower the better."""
    strategy = fl.AdaFed("val_loss", mode="min")
    strategy.epsilon = 1e-12
    strategy.accumulate(fl.ClientUpdate(4, 2, 10, 1, score=score, model=Snapshot(ZEROS, torch.zeros(0))), fl.Sums())


SAVES = {"state_dict": lambda self: {"momentum": 1.0}}
LOADS = {"load_state_dict": lambda self, state: None}

OWN = [
    (own(fl.Strategy), "Own does not define how to aggregate updates ... WeightedAverage"),
    (changed(fl.FedAvg, "aggregate", lambda state: state[:-1]), "Own.aggregate returned a tensor of shape (66,) in float64,"),
    (changed(fl.FedAvg, "aggregate", lambda state: None), "Own.aggregate returned None, but a float64"),
    (with_state(lambda state: state.mean()), "Own.combine returned a tensor of shape () in float64"),
    (with_state(lambda state: state[None]), "Own.combine returned a tensor of shape (1, 67) in"),
    (with_state(lambda state: state.float()), "Own.combine returned a tensor of shape (67,) in float32"),
    (changed(fl.FedAvg, "weight", lambda _: torch.ones(2)), "Own.weight returns a tensor of shape (2,) in float32"),
    (changed(fl.FedAvg, "weight", lambda _: "much"), "Own.weight returns an object of the class str, but"),
    (changed(fl.FedAvg, "accumulate", lambda _: None), "Own.accumulate returned None, ... Return the update's weight"),
    (changed(fl.FedMedian, "combine", lambda both: both[0]), "Own.combine returned a tensor ... Return both"),
    (changed(fl.FedMedian, "combine", lambda both: None), "Own.combine returned None, but a new state and a list"),
    (filtering(lambda examples: examples[1:]), "Own.weights returned a tensor of shape (2,) ... (3,) is needed"),
    (filtering(lambda examples: None), "Own.weights returned None, but a tensor of shape (3,)"),
    (own(fl.FedAvg, broadcast=lambda self: {"control": ZEROS}), "'control' of Own.broadcast is a tensor of shape (3,) in"),
    (own(fl.FedAvg, broadcast=lambda self: {"control": 1.0}), "'control' of Own.broadcast is an object of the class float,"),
]
"""Strategies of a user's own and what is wrong with them."""
REFUSALS = [
    # settings out of their range
    # what does not go together
    Refusal(fitting(strategy=fl.LastClient(), route=fl.Mediators(2)), "LastClient needs each client to train by itself"),
    Refusal(fitting(strategy=fl.FedAvgM(), route=fl.LocalOnly("val_acc")), "LocalOnly aggregates nothing"),
    Refusal(fitting(server_optimizer=torch.optim.Adam, route=fl.LocalOnly("val_acc")), "LocalOnly aggregates nothing"),
    Refusal(lambda: fl.WarmStart(route=fl.LocalOnly()), "must be a route that aggregates, but is 'LocalOnly'"),
    Refusal(fitting(strategy=fl.FedSGD()), "FedSGD needs one gradient over all examples of each client ... full_batch"),
    Refusal(
        fitting(module=optimized(torch.optim.Adam), strategy=fl.FedSGD(), local=fl.LocalTraining(full_batch=True)),
        "FedSGD takes one step of SGD, but the clients train with Adam",
    ),
    Refusal(fitting(strategy=fl.AFL(), clients_per_round=2), "AFL needs every client in every round, but ... a cohort of 2"),
    Refusal(fitting(strategy=fl.AFL(), faults=fl.Faults("skip")), "AFL needs every client ... 'federation.faults.policy' skip"),
    Refusal(fitting(strategy=fl.FedAdagrad(), server_optimizer=torch.optim.Adam), "FedAdagrad has its own server optimizer"),
    # rounds that a rule cannot bear
    Refusal(fitting(strategy=fl.Krum(2)), "Krum against 2 attackers needs 7 models, but a round has 3"),
    Refusal(lambda: combine(fl.Krum(1), [ZEROS] * 4), "Krum against 1 attackers needs 5 models, but a round has 4"),
    Refusal(lambda: combine(fl.Krum(0, selected=5), [ZEROS] * 4), "Krum against 0 attackers needs 5 models"),
    Refusal(lambda: combine(fl.TrimmedMean(2), [ZEROS] * 4), "that removes 2 models on each side leaves none of a round's 4"),
    Refusal(
        lambda: combine(fl.CosineFilter(), [torch.ones(3), -torch.ones(3)]),
        "None of 2 updates has a mean cosine with the others above 0",
        fl.ClientError,
    ),
    Refusal(
        lambda: combine(fl.FedMedian(), [ZEROS, NOT_NUMBERS, NOT_NUMBERS]),
        "The median of 3 models is not finite: at least half of them have diverged",
        fl.ClientError,
    ),
    Refusal(lambda: fl.FedLoss().aggregate(fl.Sums()), "FedLoss rejected every client of the round", fl.ClientError),
    Refusal(fitting(module=lambda: Plain(lr=0.0), strategy=fl.FedNova()), "add up to 0.0: its proximal term", fl.ClientError),
    # weights that cannot be summed
    Refusal(lambda: weighing(1e-20), "AdaFed gave client 4 the weight 1e+12 in round 2, but weights above", fl.ClientError),
    Refusal(fitting(module=with_loss(0.1), strategy=fl.QFedAvg(400.0)), "its loss 0.1... to the power of q =", fl.ClientError),
    Refusal(
        fitting(module=with_loss(10.0), strategy=fl.QFedAvg(400.0), secure_aggregation=fl.SecureAggregation()),
        "its loss 10.0 to the power of q = 400.0 is about 1e400, ... Lower",
        fl.ClientError,
    ),
    Refusal(
        fitting(module=with_loss(0.05), strategy=fl.QFedAvg(15.0), secure_aggregation=fl.SecureAggregation()),
        "The weight 3.05e-20 in the sum 'state' is too far from what its grid expects ... Multiply the weights of all clients",
        fl.ClientError,
    ),
    Refusal(fitting(module=with_loss(torch.nan), strategy=fl.QFedAvg()), "q-FedAvg cannot weigh client ... in", fl.ClientError),
    # strategies of a user's own
    *(Refusal(fitting(strategy=strategy), words) for strategy, words in OWN),
    Refusal(
        fitting(strategy=own(fl.FedAvg, __init__=lambda self: None)),
        "'Own' object has no attribute ... call 'super().__init__()' in it",
        AttributeError,
    ),
    # half of a saved state
    *(
        Refusal(fitting(**{setting: own(base, **methods)}), f"Own defines '{has}' but not '{lacks}', so a resumed run")
        for setting, base, methods, has, lacks in (
            ("strategy", fl.FedAvg, SAVES, "state_dict", "load_state_dict"),
            ("strategy", fl.FedMedian, LOADS, "load_state_dict", "state_dict"),
            ("route", fl.ServerRoute, SAVES, "state_dict", "load_state_dict"),
        )
    ),
]
