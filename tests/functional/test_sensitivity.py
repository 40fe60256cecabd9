"""What one client can change under ClientPrivacy: bounded by its clipped norm, or refused."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import flat
from federations import SIZES, Blobs, Plain, federate

import fl_lightning as fl
from fl_lightning.strategies.base import JointStrategy, RunningStrategy, WeightedAverage
from fl_lightning.strategies.filtering import FilteringStrategy

C, NO_NOISE = 0.05, 1e-9
HEAD = fl.PersonalPart(names="net.2.*")
BASES = (fl.Strategy, RunningStrategy, JointStrategy, WeightedAverage, FilteringStrategy)
RULES = sorted(
    (
        kind
        for kind in (getattr(fl, name) for name in fl.__all__)
        if inspect.isclass(kind) and issubclass(kind, fl.Strategy) and kind not in BASES
    ),
    key=lambda kind: kind.__name__,
)
PLAIN_MEANS = {"APFL", "Ditto", "FedAdagrad", "FedAvg", "FedAvgM", "FedBABU", "FedRep", "MOON", "PFedMe"}
MEASURED = {"AFL", "FedLoss", "Focus", "QFedAvg"}
"""Strategies that read what clients measure on their own data."""
NOT_THE_MODEL = {"Scaffold", "FederatedKMeans"}


def built(kind: type[fl.Strategy]) -> fl.Strategy:
    named = inspect.signature(kind).parameters
    given: dict[str, Any] = {"weighting": "uniform"} if "weighting" in named else {}
    given |= {"representation": "net.1"} if "representation" in named else {}
    given |= {"metric": "val_acc"} if "metric" in named else {}
    return kind(**given)


class Neighbour(Blobs):
    """The same examples, but those of client 0 are others, which pull much harder, or numbers are missing in them."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__(dtype=torch.float64)
        self.train[0][: SIZES[0]] *= torch.nan if broken else -20
        self.train[1][: SIZES[0]] = 2 - self.train[1][: SIZES[0]]


def step_of(data: Blobs, noise: str = "central", rounds: int = 1, **settings: Any) -> np.ndarray:
    torch.manual_seed(0)
    module = Plain(lr=0.5).double()
    start = flat(module)[0]
    settings.setdefault("transforms", [fl.ClientPrivacy(C, NO_NOISE, noise, noise_seed=1)])
    federate(module, rounds, data=data, flags={"precision": "64-true"}, **settings)
    return flat(module)[0] - start


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_with_central_noise_one_client_moves_the_aggregate_by_its_clipped_norm_or_is_refused(kind, monkeypatch):
    """FedAdagrad's own server optimizer, which sees only the noisy average, is set aside to look at that average."""
    monkeypatch.setattr(fl.FedAdagrad, "server_optimizer", fl.Strategy.server_optimizer)
    strategy, privacy = built(kind), [fl.ClientPrivacy(C, 1.0)]
    if kind.__name__ not in PLAIN_MEANS:
        with pytest.raises(fl.ConfigurationError, match=r"ClientPrivacy|asynchronous|full_batch|validation part"):
            federate(Plain(), 1, strategy=strategy, transforms=privacy)
        return
    more = {"personal": [HEAD], "local": fl.LocalTraining(max_epochs=2)} if strategy.needs_held_parts else {}
    usual = Blobs(dtype=torch.float64)
    moved = step_of(usual, strategy=strategy, **more)
    assert np.linalg.norm(moved - step_of(Neighbour(), strategy=built(kind), **more)) <= 2 * C / 3 * (1 + 1e-6)
    absent = step_of(Neighbour(broken=True), strategy=built(kind), faults=fl.Faults("skip"), **more)
    assert 0.5 * C / 3 < np.linalg.norm(moved - absent) <= C / 3 * (1 + 1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"transforms": [fl.TopK(0.3), fl.ClientPrivacy(C, NO_NOISE, noise_seed=1)]},
        {"transforms": [fl.ClipUpdate(9.0), fl.ClientPrivacy(C, NO_NOISE, noise_seed=1)]},
        {"transforms": [fl.ClientPrivacy(C, NO_NOISE, noise_seed=1, target_quantile=0.5)]},
        {"attackers": fl.Attackers(clients=[0], model=fl.SignFlip(100.0))},
        {"personal": [HEAD]},
        {"secure_aggregation": fl.SecureAggregation()},
        {"local": fl.LocalTraining(engine="stacked")},
    ],
    ids=["top k", "clipped", "adaptive", "attackers", "personal", "secure", "stacked"],
)
def test_what_comes_before_the_clipping_does_not_raise_the_sensitivity(settings):
    strategy = fl.FedAvgM(0.9, weighting="uniform")
    usual, other = (step_of(data, strategy=strategy, **settings) for data in (Blobs(dtype=torch.float64), Neighbour()))
    assert 0 < np.linalg.norm(usual - other) <= 2 * C / 3 * (1 + 1e-6)


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_with_local_noise_only_the_model_depends_on_the_data_or_the_strategy_is_refused(kind, monkeypatch):
    """Oracle: of two federations that differ in client 0's data, its update differs in nothing else that a rule may read."""
    if kind.__name__ in MEASURED | NOT_THE_MODEL:
        private = fl.ClientPrivacy(C, 1.0, "local")
        federation = fl.FederatedOrchestrator(built(kind), transforms=[private])
        with pytest.raises(fl.ConfigurationError, match="ClientPrivacy"):
            private.check_settings(federation)
        return
    seen: list[list[Any]] = [[], []]
    for data, found in zip((Blobs(dtype=torch.float64), Neighbour()), seen, strict=True):
        strategy = built(kind)
        name = "combine" if isinstance(strategy, JointStrategy) else "accumulate"
        method = getattr(strategy, name)

        def watched(updates, more, method=method, found=found):
            found.extend(u for u in (updates if isinstance(updates, list) else [updates]) if u.client == 0)
            return method(updates, more)

        monkeypatch.setattr(strategy, name, watched, raising=False)
        more: dict[str, Any] = {"personal": [HEAD]} if strategy.needs_held_parts else {}
        more |= {"asynchronous": fl.Asynchronous(3, strategy.largest_buffer or 3)} if strategy.needs_asynchronous else {}
        more |= {"local": fl.LocalTraining(full_batch=True)} if strategy.needs_full_batch else {}
        step_of(data, "local", 3 if strategy.needs_asynchronous else 1, strategy=strategy, **more)
    one, other = (found[0] for found in seen)
    assert float((one.state - other.state).norm()) <= 2 * C * (1 + 1e-6)
    for fact in ("num_examples", "num_steps", "normalizer", "optimizer", "staleness", "local_score", "global_score"):
        assert getattr(one, fact) == getattr(other, fact)
    assert not {*one.extras, *one.snapshot.moved}
    assert not one.snapshot.counters.numel()


class Declares(fl.FedAvg):
    """FedAvg under another name."""

    private_with = ("central", "local", "examples")


def test_a_subclass_that_says_that_it_is_private_is_accepted():
    for noise in ("central", "local"):
        assert np.linalg.norm(step_of(Blobs(dtype=torch.float64), noise, strategy=Declares("uniform"))) > 0
    private = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0, noise_seed=1))
    assert federate(Plain(), 1, strategy=Declares(), local=private).global_step == 1
