"""What one client can change under ClientPrivacy: bounded by its clipped norm, or refused."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import flat
from federations import SIZES, Blobs, Plain, federate

import fl_lightning
from fl_lightning import (
    Attackers,
    ClientPrivacy,
    ClientUpdate,
    ClipUpdate,
    ConfigurationError,
    ExamplePrivacy,
    Faults,
    FedAvg,
    FedAvgM,
    FedCyclic,
    FederatedOrchestrator,
    FedExP,
    LocalTraining,
    PersonalPart,
    ServerRoute,
    SignFlip,
    Strategy,
    TableDataModule,
    TopK,
)
from fl_lightning.strategies.base import JointStrategy, RunningStrategy, WeightedAverage
from fl_lightning.strategies.filtering import FilteringStrategy
from fl_lightning.transforms import Message, Sender

C, NO_NOISE = 0.05, 1e-9
HEAD = PersonalPart(names="net.2.*")
BASES = (Strategy, RunningStrategy, JointStrategy, WeightedAverage, FilteringStrategy)
RULES = sorted(
    (
        kind
        for kind in (getattr(fl_lightning, name) for name in fl_lightning.__all__)
        if inspect.isclass(kind) and issubclass(kind, Strategy) and kind not in BASES
    ),
    key=lambda kind: kind.__name__,
)
PLAIN_MEANS = {"APFL", "Ditto", "FedAdagrad", "FedAvg", "FedAvgM", "FedBABU", "FedRep", "MOON", "PFedMe"}
MEASURED = {"AFL", "FedLoss", "Focus", "QFedAvg"}
"""Strategies that read what clients measure on their own data."""
NOT_THE_MODEL = {"Scaffold", "FederatedKMeans"}


def built(kind: type[Strategy]) -> Strategy:
    named = inspect.signature(kind).parameters
    given: dict[str, Any] = {"weighting": "uniform"} if "weighting" in named else {}
    given |= {"representation": "net.1"} if "representation" in named else {}
    given |= {"metric": "val_acc"} if "metric" in named else {}
    return kind(**given)


class Neighbour(Blobs):
    """The same examples, but those of client 0 are others, which pull much harder."""

    def __init__(self) -> None:
        super().__init__(dtype=torch.float64)
        self.train[0][: SIZES[0]] *= -20
        self.train[1][: SIZES[0]] = 2 - self.train[1][: SIZES[0]]


class Broken(Blobs):
    """The same, but client 0 fails, as if it were absent."""

    def __init__(self) -> None:
        super().__init__(dtype=torch.float64)
        self.train[0][: SIZES[0]] = torch.nan


def step_of(data: Blobs, noise: str = "central", rounds: int = 1, **settings: Any) -> np.ndarray:
    torch.manual_seed(0)
    module = Plain(lr=0.5).double()
    start = flat(module)[0]
    settings.setdefault("transforms", [ClientPrivacy(C, NO_NOISE, noise, noise_seed=1)])
    federate(module, rounds, data=data, flags={"precision": "64-true"}, **settings)
    return flat(module)[0] - start


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_with_central_noise_one_client_moves_the_aggregate_by_its_clipped_norm_or_is_refused(kind, monkeypatch):
    """FedAdagrad's own server optimizer, which sees only the noisy average, is set aside to look at that average."""
    monkeypatch.setattr(fl_lightning.FedAdagrad, "server_optimizer", Strategy.server_optimizer)
    strategy, privacy = built(kind), [ClientPrivacy(C, 1.0)]
    if kind.__name__ not in PLAIN_MEANS:
        with pytest.raises(ConfigurationError, match=r"ClientPrivacy|asynchronous|full_batch|validation part"):
            federate(Plain(), 1, strategy=strategy, transforms=privacy)
        return
    more = {"personal": [HEAD], "local": LocalTraining(max_epochs=2)} if strategy.needs_held_parts else {}
    usual = Blobs(dtype=torch.float64)
    moved = step_of(usual, strategy=strategy, **more)
    assert np.linalg.norm(moved - step_of(Neighbour(), strategy=built(kind), **more)) <= 2 * C / 3 * (1 + 1e-6)
    absent = step_of(Broken(), strategy=built(kind), faults=Faults("skip"), **more)
    assert 0.5 * C / 3 < np.linalg.norm(moved - absent) <= C / 3 * (1 + 1e-6)


@pytest.mark.parametrize("strategy", [FedAvg("uniform"), FedAvgM(0.9, weighting="uniform")])
@pytest.mark.parametrize(
    "settings",
    [
        {"transforms": [TopK(0.3), ClientPrivacy(C, NO_NOISE, noise_seed=1)]},
        {"transforms": [ClipUpdate(9.0), ClientPrivacy(C, NO_NOISE, noise_seed=1)]},
        {"transforms": [ClientPrivacy(C, NO_NOISE, noise_seed=1, target_quantile=0.5)]},
        {"attackers": Attackers(clients=[0], model=SignFlip(100.0))},
        {"personal": [HEAD]},
        {"secure_aggregation": fl_lightning.SecureAggregation()},
        {"local": LocalTraining(engine="stacked")},
    ],
    ids=["top k", "clipped", "adaptive", "attackers", "personal", "secure", "stacked"],
)
def test_what_comes_before_the_clipping_does_not_raise_the_sensitivity(strategy, settings):
    usual, other = (step_of(data, strategy=strategy, **settings) for data in (Blobs(dtype=torch.float64), Neighbour()))
    assert 0 < np.linalg.norm(usual - other) <= 2 * C / 3 * (1 + 1e-6)


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_with_local_noise_only_the_model_depends_on_the_data_or_the_strategy_is_refused(kind, monkeypatch):
    """Oracle: of two federations that differ in client 0's data, its update differs in nothing else that a rule may read."""
    if kind.__name__ in MEASURED | NOT_THE_MODEL:
        private = ClientPrivacy(C, 1.0, "local")
        federation = FederatedOrchestrator(built(kind), transforms=[private])
        with pytest.raises(ConfigurationError, match="ClientPrivacy"):
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
        more |= (
            {"asynchronous": fl_lightning.Asynchronous(3, strategy.largest_buffer or 3)} if strategy.needs_asynchronous else {}
        )
        more |= {"local": LocalTraining(full_batch=True)} if strategy.needs_full_batch else {}
        step_of(data, "local", 3 if strategy.needs_asynchronous else 1, strategy=strategy, **more)
    one, other = (found[0] for found in seen)
    assert float((one.state - other.state).norm()) <= 2 * C * (1 + 1e-6)
    for fact in ("num_examples", "num_steps", "normalizer", "optimizer", "staleness", "local_score", "global_score"):
        assert getattr(one, fact) == getattr(other, fact)
    assert not {*one.extras, *one.snapshot.moved}
    assert not one.snapshot.counters.numel()


class Inherits(FedAvg):
    """Counts client 0 ten times."""

    def weight(self, update: ClientUpdate) -> float:
        return 10.0 if update.client == 0 else 1.0


class Declares(FedAvg):
    """FedAvg under another name."""

    private_with = ("central", "local", "examples")


class Scales(ClipUpdate):
    """Increases the average at the server."""

    def receive(self, change: torch.Tensor, *rest: Any) -> torch.Tensor:
        return 10 * change


class Unclipped(ClientPrivacy):
    """Forgets to clip."""

    def apply(self, message: Message, sender: Sender) -> Message:
        return message


class OwnRoute(ServerRoute):
    """Could hand anything to anyone."""


class WithRange(Plain):
    """Records the smallest input, which is taken over the clients."""

    extreme_buffers = {"smallest": "min"}

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("smallest", torch.full((4,), torch.inf))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.smallest.copy_(torch.minimum(self.smallest, batch[0].amin(0)))
        return super().training_step(batch, batch_idx)


def test_a_subclass_that_says_that_it_is_private_is_accepted():
    for noise in ("central", "local"):
        step_of(Blobs(dtype=torch.float64), noise, strategy=Declares("uniform"))
    federate(Plain(), 1, strategy=Declares(), local=LocalTraining(privacy=ExamplePrivacy(1.0, 1.0, noise_seed=1)))


CENTRAL, LOCAL = ClientPrivacy(C, 1.0), ClientPrivacy(C, 1.0, "local")
EXAMPLES = LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strategy": Inherits("uniform"), "transforms": [CENTRAL]},
            r"Inherits does not declare that it computes it .*, set 'private_with = \(\"central\",\)' in its body",
        ),
        (
            {"strategy": Inherits(), "transforms": [LOCAL]},
            r"Inherits does not declare that it reads nothing else .*, set 'private_with = \(\"local\",\)' in its body",
        ),
        ({"strategy": Inherits(), "local": EXAMPLES}, r"'federation.local.privacy' covers only .* = \(\"examples\",\)' in"),
        ({"strategy": Declares(), "transforms": [CENTRAL]}, "Declares weighs by 'examples'"),
        ({"strategy": FedExP(), "transforms": [CENTRAL]}, "but FedExP combines models in another way"),
        ({"transforms": [Scales(1.0), CENTRAL]}, r"Scales changes the average at the server \('receive'\) before"),
        ({"transforms": [Unclipped(C, 1.0)]}, "Unclipped is a subclass of ClientPrivacy"),
        ({"transforms": [LOCAL], "route": OwnRoute()}, "ClientPrivacy covers only .* 'federation.route' is OwnRoute"),
        ({"transforms": [CENTRAL], "route": FedCyclic()}, "on the route FedCyclic clients pass models to each other"),
        ({"transforms": [CENTRAL], "personal": [HEAD], "personal_start": "mean"}, "'mean', .* but ClientPrivacy does not"),
        ({"transforms": [LOCAL], "personal": [HEAD], "personal_start": "mean"}, "'mean', .* but ClientPrivacy does not"),
        ({"local": EXAMPLES, "personal": [HEAD], "personal_start": "mean"}, "'mean', .* but 'federation.local.privacy' does"),
        ({"module": WithRange(), "transforms": [CENTRAL]}, "smallest"),
        ({"module": WithRange(), "transforms": [LOCAL]}, "smallest"),
        ({"module": WithRange(), "local": EXAMPLES}, "smallest"),
    ],
)
def test_what_no_clipping_bounds_is_refused(settings, message):
    settings = {"strategy": FedAvg("uniform"), "module": Plain(), **settings}
    with pytest.raises(ConfigurationError, match=message):
        federate(settings.pop("module"), 1, **settings)


def test_inputs_that_are_scaled_by_all_clients_rows_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{k},{k * k},{k % 2}\n" for k in range(sum(SIZES))))
    data = TableDataModule(str(tmp_path / "rows.csv"), "y", kind="classification", test_share=0.0)
    for settings in ({"transforms": [CENTRAL]}, {"transforms": [LOCAL]}, {"local": EXAMPLES}):
        with pytest.raises(ConfigurationError, match=r"'data.datamodule.standardize' is true, .* Set it to false"):
            federate(Plain(), 1, data=data, strategy=FedAvg("uniform"), **settings)
