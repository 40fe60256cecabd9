"""fluke's algorithms, run as its users run them, with given cohorts and batches in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import (
    Case,
    Result,
    Run,
    Vector,
    main,
    network,
    norm_entries,
    server_rounds,
    vector,
)
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM
from fluke.algorithms.fedbn import FedBN
from fluke.algorithms.feddyn import FedDyn
from fluke.algorithms.fednova import FedNova
from fluke.algorithms.fedopt import FedOpt
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.fedrep import FedRep
from fluke.algorithms.moon import MOON
from fluke.algorithms.pfedme import PFedMe, PFedMeOptimizer
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.utils import FederationObserver
from fluke_changed import (
    FirstMomentum,
    FirstNorm,
    FirstReceived,
    FromTau,
    FullNova,
    PaperDynClient,
    PaperDynServer,
    PaperMe,
    Pulled,
    TorchAdam,
)
from torch import nn

Settings = dict[str, Any]


class Record(FederationObserver):
    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.weights: list[Vector] = []

    def end_round(self, round: int) -> None:
        server = self.algorithm.server
        self.weights.append(vector(getattr(server, "cld_mdl", server.model)))  # FedDyn sends cld_mdl


def federation(
    kind: Any,
    client: Callable[[Settings], Settings] = lambda s: {},
    server: Callable[[Settings], Settings] = lambda s: {},
    own: Callable[[Any], nn.Module] | None = None,
    optimizer: Callable[[Settings], Settings] = lambda s: {},
) -> Run:
    """A run of one of fluke's classes; ``own`` returns a client's own model."""

    def run(case: Case) -> Result:
        s, net = case.settings, network(case)
        model = net if "batchnorm" in s else EncoderHeadNet(net.encoder, net.head)
        local = {"batch_size": s["batch"], "local_epochs": s["epochs"], "loss": "CrossEntropyLoss", "model": model}
        rates = DDict(name="SGD", lr=case.lr) if not optimizer(s) else DDict(**optimizer(s))
        scheduler = DDict(name="StepLR", step_size=1, gamma=1)
        settings = DDict(**{**local, **client(s)}, optimizer=rates, scheduler=scheduler)
        if not issubclass(kind, (APFL, Ditto, FedRep)):
            settings.pop("model")
        shared = copy.deepcopy(net.encoder) if kind is FedRep else model
        hyper = DDict(model=shared, client=settings, server=DDict(weighted=s.get("weighting") != "uniform", **server(s)))
        algorithm = kind(len(case.sizes), _data(case), hyper)
        rounds = iter(case.cohorts)
        algorithm.server.get_eligible_clients = lambda share: [algorithm.clients[k] for k in next(rounds)]
        algorithm.finalize = lambda: None  # a broadcast for its evaluation, after the last round
        algorithm.set_callbacks(record := Record(algorithm))
        algorithm.run(len(case.cohorts), 1.0)
        trained = sorted({k for cohort in case.cohorts for k in cohort})
        models = {k: vector(own(algorithm.clients[k])) for k in trained} if own else None
        return Result(record.weights, models)

    return run


def _data(case: Case) -> DataSplitter:
    loaders = [
        FastDataLoader(*case.examples(k), num_labels=3, batch_size=case.settings["batch"], shuffle=False)
        for k in range(len(case.sizes))
    ]
    return DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, num_classes=3))


def _normed(kind: Any) -> Run:
    def run(case: Case) -> Result:
        norm = norm_entries(case)
        FirstNorm.start = network(case)
        result = federation(kind, own=lambda client: client.model)(case)
        return Result(result.weights, {k: weights[norm] for k, weights in (result.own or {}).items()})

    return run


class Initial(EncoderHeadNet):
    """fluke builds each client's network by name; a network that is given would be the same object for all clients."""

    start: Any = None

    def __init__(self) -> None:
        net = copy.deepcopy(Initial.start)
        super().__init__(net.encoder, net.head)


def fedrep(case: Case) -> Result:
    """One epoch of the head, then one of the encoder; the server has the encoder."""
    Initial.start = network(case)
    turn = lambda s: {"local_epochs": 1, "tau": 1, "model": "__main__.Initial"}  # noqa: E731
    return federation(FedRep, turn, own=lambda client: client.model.get_local())(case)


def apfl_of_fluke(case: Case) -> Result:
    """The personal model gets no gradient: it is mixed with w_k after each round, and that is all."""
    own: dict[int, Vector] = {}
    share = case.settings["alpha"]

    def step(w: Vector, cohort: Sequence[int], models: list[Vector]) -> Vector:
        for k, model in zip(cohort, models, strict=True):
            own[k] = (1 - share) * model + share * own.get(k, case.initial)
        return case.shares(cohort) @ np.stack(models)

    return Result(server_rounds(case, step).weights, own)


def with_classes(kind: Any, client: Any = None, server: Any = None, optimizer: Any = None) -> Any:
    """The algorithm with another client, server or optimizer."""
    found = {"get_client_class": client, "get_server_class": server, "get_optimizer_class": optimizer}
    methods = {name: (lambda self, value=value: value) for name, value in found.items() if value is not None}
    return type(kind.__name__, (kind,), methods)


def adaptive(mode: str) -> Callable[[Settings], Settings]:
    return lambda s: {"mode": mode, "lr": s["server_lr"], "beta1": s["beta_1"], "beta2": s["beta_2"], "tau": s["tau"]}


def _moreau(kind: Any, own: Callable[[Any], nn.Module], name: Any = PFedMeOptimizer) -> Run:
    turn = lambda s: {"k": s["steps"], "local_epochs": s["epochs"] // s["steps"]}  # noqa: E731
    rates = lambda s: {"name": name, "lr": s["lr"], "lamda": s["strength"], "mu": 0.0}  # noqa: E731
    return federation(kind, turn, lambda s: {"beta": s["beta"]}, own, rates)


def _beside(kind: Any, client: Callable[[Settings], Settings], server: Callable[[Settings], Settings] = lambda s: {}) -> Run:
    return federation(kind, client, server, own=lambda client: client.personalized_model)


_ALPHA = (lambda s: {"alpha": s["alpha"], "clipping": 0}, lambda s: {"alpha": s["alpha"]})
_MODES = {"FedAdam": "adam", "FedAdagrad": "adagrad", "FedYogi": "yogi"}
_MOMENTUM = lambda s: {"momentum": s["momentum"]}  # noqa: E731
RUNS: dict[str, Run] = {
    "FedAvg": federation(FedAVG),
    "FedAvgM": federation(FedAVGM, server=_MOMENTUM),
    "FedProx": federation(FedProx, lambda s: {"mu": s["proximal_mu"]}),
    "SCAFFOLD": federation(SCAFFOLD),
    "FedNova": federation(FedNova),
    "FedDyn": federation(FedDyn, *_ALPHA),
    "MOON": federation(MOON, lambda s: {"mu": s["mu"], "tau": s["temperature"]}),
    "Ditto": _beside(Ditto, lambda s: {"tau": s["epochs"], "lam": s["strength"]}),
    "FedRep": fedrep,
    "FedBN": _normed(FedBN),
    "APFL": _beside(APFL, lambda s: {"lam": s["alpha"]}, lambda s: {"tau": 1}),
    "pFedMe": _moreau(PFedMe, lambda client: client.model),
    **{name: federation(FedOpt, server=adaptive(mode)) for name, mode in _MODES.items()},
}
CHANGED: dict[str, Run] = {
    "FedAvgM": federation(with_classes(FedAVGM, server=FirstMomentum), server=_MOMENTUM),
    "FedNova": federation(with_classes(FedNova, server=FullNova)),
    "FedDyn": federation(with_classes(FedDyn, PaperDynClient, PaperDynServer), *_ALPHA),
    "pFedMe": _moreau(with_classes(PFedMe, PaperMe, optimizer=Pulled), lambda client: client.theta, Pulled),
    "Ditto": _beside(with_classes(Ditto, FirstReceived), lambda s: {"tau": s["epochs"], "lam": s["strength"]}),
    "FedBN": _normed(with_classes(FedBN, FirstNorm)),
    "FedAdam": federation(with_classes(FedOpt, server=TorchAdam), server=adaptive("adam")),
    "FedAdagrad": federation(with_classes(FedOpt, server=FromTau), server=adaptive("adagrad")),
    "FedYogi": federation(with_classes(FedOpt, server=FromTau), server=adaptive("yogi")),
}
EXPLAINED: dict[str, Run] = {"APFL": apfl_of_fluke}

if __name__ == "__main__":
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    main("fluke-fl", RUNS, CHANGED, EXPLAINED)
