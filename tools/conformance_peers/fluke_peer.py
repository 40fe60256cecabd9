"""fluke's algorithms, run as its users run them, with given cohorts and batches in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import fluke.server
import numpy as np
import torch
from common import Case, Result, Run, Vector, as_torch_adam, load, main, network, norm_entries, server_rounds, vector
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.algorithms.ditto import Ditto, DittoClient
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM, FedAVGMServer
from fluke.algorithms.fedbn import FedBN, FedBNClient
from fluke.algorithms.feddyn import FedDyn, FedDynClient, FedDynServer
from fluke.algorithms.fednova import FedNova, FedNovaServer
from fluke.algorithms.fedopt import FedOpt, FedOptServer
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.fedrep import FedRep
from fluke.algorithms.moon import MOON
from fluke.algorithms.pfedme import PFedMe, PFedMeClient, PFedMeOptimizer
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.utils import FederationObserver
from torch import nn

Settings = dict[str, Any]

# fluke's classes with those lines changed in which they differ from the papers: see docs/conformance.md


class FirstNorm(FedBNClient):
    """A client that comes later starts from the first BatchNorm, too, not from the average of the others'."""

    start: nn.Module | None = None

    def receive_model(self) -> None:
        first = self.model is None
        super().receive_model()
        if first:
            self.model.encoder[1].load_state_dict(self.start.encoder[1].state_dict())


class FirstReceived(DittoClient):
    """v_k starts from the first model that the client receives, not from the initial one."""

    def fit(self, override_local_epochs: int = 0) -> Any:
        if self.pers_optimizer is None:
            self.personalized_model.load_state_dict(self.model.state_dict())
        return super().fit(override_local_epochs)


class FullNova(FedNovaServer):
    """Adds (1 - sum of weights) w_t, since the weights do not sum to 1."""

    @torch.no_grad()
    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        before, p = vector(self.model), np.array(self._get_client_weights(eligible))
        super().aggregate(eligible, client_models)
        a = np.array([client.a for client in eligible])
        load(self.model, vector(self.model) + (1 - (p @ a) * (p / a).sum()) * before)


class FromTau(FedOptServer):
    """v starts at tau^2, and the average that the change is taken from has rate 1."""

    def _init_moments(self) -> None:
        super()._init_moments()
        self.v_t = {key: torch.full_like(v, self.hyper_params.tau**2) for key, v in self.v_t.items()}

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        average = fluke.server.aggregate_models
        rate_one = lambda model, models, weights, eta, inplace: average(model, models, weights, 1.0, inplace)  # noqa: E731
        with mock.patch("fluke.server.aggregate_models", rate_one):
            super().aggregate(eligible, client_models)


class TorchAdam(FromTau):
    """The average has rate 1, and bias is corrected, as torch's Adam does; v starts at 0."""

    def _init_moments(self) -> None:
        FedOptServer._init_moments(self)
        self.settings, self.number = dict(self.hyper_params), 0

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        self.number += 1
        s = {"server_lr": self.settings["lr"], "tau": self.settings["tau"]}
        s |= {"beta_1": self.settings["beta1"], "beta_2": self.settings["beta2"]}
        lr, tau = as_torch_adam(s, self.number)
        self.hyper_params.update(lr=lr, tau=tau)
        super().aggregate(eligible, client_models)


class FirstMomentum(FedAVGMServer):
    """The first round moves: the velocity is its change, not 0."""

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        if self.momentum_vector is None:
            self.momentum_vector = {key: torch.zeros_like(t) for key, t in self.model.state_dict().items()}
        super().aggregate(eligible, client_models)


class PaperDynClient(FedDynClient):
    """g_k moves by alpha (w_t - w_k) and enters the loss with its own sign, once; alpha is the same for all clients."""

    def _receive_weights(self) -> None:
        super()._receive_weights()
        self.weight = 1.0

    def receive_model(self) -> None:
        first = self.model is None
        sent = self.channel.receive(self.index, "server", msg_type="model").payload
        self.model = copy.deepcopy(sent[1]) if first else self.model
        self.model.load_state_dict(sent[1].state_dict())
        if first:
            self.prev_grads = torch.zeros(sum(p.numel() for p in self.model.parameters()), dtype=torch.float64)

    def fit(self, override_local_epochs: int = 0) -> float:
        before = self.prev_grads.clone()  # fluke's sum of alpha (w_t - w_k) becomes the authors' sum of w_k - w_t
        loss = super().fit(override_local_epochs)
        self.prev_grads = before - (self.prev_grads - before) / self.hyper_params.alpha
        return loss


class PaperDynServer(FedDynServer):
    """The correction is a mean over all clients, not over the cohort."""

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        super().aggregate(eligible, client_models)
        sums = [client.prev_grads for client in self.clients if client.prev_grads is not None]
        load(self.cld_mdl, vector(self.model) + sum(sums).numpy() / self.n_clients)


class Pulled(PFedMeOptimizer):
    """The pull is towards w; fluke passes theta's own parameters, so that theirs is 0."""

    anchor: list[torch.Tensor] | None = None

    def step(self, local_parameters: Any, closure: Any = None) -> None:
        super().step(self.anchor if self.anchor is not None else local_parameters, closure)


class PaperMe(PFedMeClient):
    """w starts at w_t in each turn and is what is sent; theta starts there, too."""

    def fit(self, override_local_epochs: int = 0) -> float:
        self.internal_model.load_state_dict(self.model.state_dict())
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
        self.optimizer.anchor = list(self.internal_model.parameters())
        kept = self.internal_model.load_state_dict
        self.internal_model.load_state_dict = lambda state: None  # fluke overwrites w by theta after training
        loss = super().fit(override_local_epochs)
        self.internal_model.load_state_dict = kept
        self.theta = copy.deepcopy(self.model)
        self.model.load_state_dict(self.internal_model.state_dict())
        return loss


# Its algorithms as its users run them


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
        return case.mean(cohort, models)

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
