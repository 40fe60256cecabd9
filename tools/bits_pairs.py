"""Record which settings are refused, alone and in pairs: fits are set up to the start of their first round."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from algorithms import SIZES, Following, Remembering, Scheduled, Stream, Thawing, ThreeLines, Weighted
from federations import Blobs, Consecutive, NoValidation, Plain, network, trainer
from lightning.pytorch import Callback
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl


class Started(Exception):  # noqa: N818 (no error)
    """The fit would begin its first round."""


class Stop(Callback):
    """End the fit where training would begin."""

    def on_train_start(self, *_: Any) -> None:
        """Raise what :func:`outcome` expects."""
        raise Started


class Manual(Plain):
    """Optimizes manually."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.automatic_optimization = False


class TwoOptimizers(Plain):
    """One optimizer for each layer."""

    def configure_optimizers(self) -> Any:
        """Return both."""
        return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[-1].parameters(), 0.1)]


class AdamW(Plain):
    """An optimizer with moments."""

    def configure_optimizers(self) -> Any:
        """Return it."""
        return torch.optim.AdamW(self.parameters(), 0.01)


def adaptive(batchnorm: bool = False, **_: Any) -> Any:
    """Return a task whose loss the server adapts."""
    return fl.ClassificationTask(network(batchnorm), 3, fl.F1WeightedCrossEntropy(3))


Options = dict[str, Any]
ACCURACY = MulticlassAccuracy(3)
NOISE: Options = {"noise_multiplier": 0.5, "noise_seed": 7}
TEST: Options = {"client_test": 0.3}
VALIDATION: Options = {"client_validation": 0.3}
STRATEGIES: dict[str, Callable[[], Any]] = {
    "AFL": lambda: fl.AFL(1.0),
    "APFL": lambda: fl.APFL(0.5, 0.1),
    "AdaFed": lambda: fl.AdaFed("val_acc"),
    "AdaFed by a metric of its own": lambda: fl.AdaFed(ACCURACY),
    "CosineFilter": lambda: fl.CosineFilter(-0.5),
    "Ditto": lambda: fl.Ditto(0.5),
    "FedAdagrad": lambda: fl.FedAdagrad(),
    "FedAvg by examples": lambda: fl.FedAvg(),
    "FedAvgM": lambda: fl.FedAvgM(0.7),
    "FedDyn": lambda: fl.FedDyn(0.1),
    "FedExP": lambda: fl.FedExP(),
    "FedMedian": lambda: fl.FedMedian(),
    "FedNova": lambda: fl.FedNova(),
    "FederatedKMeans": lambda: fl.FederatedKMeans(),
    "Focus": lambda: fl.Focus(),
    "GeometricMedian": lambda: fl.GeometricMedian(),
    "Krum": lambda: fl.Krum(1),
    "LastClient": lambda: fl.LastClient(),
    "MOON": lambda: fl.MOON("net.1"),
    "PFedMe": lambda: fl.PFedMe(2.0, 3, 0.2),
    "QFedAvg": lambda: fl.QFedAvg(),
    "Scaffold": lambda: fl.Scaffold(),
    "ShapleyValues": lambda: fl.ShapleyValues("val_acc", exact_up_to=5),
    "TrimmedMean": lambda: fl.TrimmedMean(1),
}
WITH_MORE: dict[str, Callable[[], Options]] = {
    "AdaFed scored by clients": lambda: {"strategy": fl.AdaFed("val_acc", scored_by="clients"), "data": VALIDATION},
    "FedLoss": lambda: {"strategy": fl.FedLoss(), "data": VALIDATION},
    "FedSGD": lambda: {"strategy": fl.FedSGD(), "local": {"full_batch": True}},
    "FedRep": lambda: {"strategy": fl.FedRep(), "personal": [layer()]},
    "FedBABU": lambda: {"strategy": fl.FedBABU(), "personal": [layer()]},
    "FedBuff": lambda: {"strategy": fl.FedBuff(), "asynchronous": fl.Asynchronous(4, 2), "availability": timed("lognormal")},
    "FedAsync": lambda: {"strategy": fl.FedAsync(), "asynchronous": fl.Asynchronous(0.8), "availability": timed()},
    "Mocha": lambda: {"route": fl.Mocha(), "module": ThreeLines},
}
ROUTES: dict[str, Callable[[], Any]] = {
    "FedCyclic": lambda: fl.FedCyclic(),
    "FedStar": lambda: fl.FedStar(2, "val_acc"),
    "LocalOnly": lambda: fl.LocalOnly("val_acc"),
    "Mediators": lambda: fl.Mediators(2),
    "RingFed": lambda: fl.RingFed(2, 0.8),
    "WarmStart": lambda: fl.WarmStart(1),
}
ATTACKERS: dict[str, Callable[[], Any]] = {
    "wrong labels": lambda: fl.Attackers({1: 0.5}),
    "global model discarded": lambda: fl.Attackers(discard_global=[1]),
    "labels attacked": lambda: fl.Attackers(clients=[1], labels=fl.PermutedLabels()),
    "models attacked": lambda: fl.Attackers(clients=0.4, model=fl.ALIE(1.0), from_round=1),
    "backdoor": lambda: fl.Attackers(clients=[1], backdoor=fl.Backdoor(size=1)),
}
LOCAL: dict[str, Callable[[], Options]] = {
    "engine fabric": lambda: {"engine": "fabric"},
    "engine stacked": lambda: {"engine": "stacked"},
    "optimizers kept": lambda: {"optimizer_state": "kept"},
    "lr_decay": lambda: {"lr_decay": 0.9},
    "progress by round": lambda: {"progress": "round"},
    "proximal": lambda: {"proximal_mu": 0.1},
    "partial work kept": lambda: {"partial_work": fl.PartialWork(0.4)},
    "partial work dropped": lambda: {"partial_work": fl.PartialWork(0.4, "drop")},
    "clipped gradients": lambda: {"gradient_clip_val": 1.0},
    "accumulated gradients": lambda: {"accumulate_grad_batches": 2},
    "bf16": lambda: {"precision": "bf16-mixed"},
    "private examples": lambda: {"privacy": fl.ExamplePrivacy(1.0, **NOISE)},
}
OTHERS: dict[str, Callable[[], Options]] = {
    "clipped updates": lambda: {"transforms": [fl.ClipUpdate(0.5)]},
    "top k": lambda: {"transforms": [fl.TopK(0.5)]},
    "quantized": lambda: {"transforms": [fl.Quantize(8)]},
    "private clients": lambda: {"transforms": [fl.ClientPrivacy(0.5, **NOISE)]},
    "private clients, local": lambda: {"transforms": [fl.ClientPrivacy(0.5, noise="local", **NOISE)]},
    "secure aggregation": lambda: {"secure_aggregation": fl.SecureAggregation()},
    "faults skipped": lambda: {"faults": fl.Faults("skip", retries=1)},
    "drop out": lambda: {"availability": fl.Availability(0.3)},
    "slow clients": lambda: {"availability": fl.Availability(slow=0.5)},
    "leaving clients": lambda: {"availability": fl.Availability(leave=0.3)},
    "cohorts": lambda: {"clients_per_round": 3},
    "layer personal": lambda: {"personal": [layer()]},
    "personal from the mean": lambda: {"personal": [replace(layer(), start="mean")]},
    "asynchronous": lambda: {"asynchronous": fl.Asynchronous(4, 2), "availability": timed("lognormal")},
    "clock": lambda: {"availability": timed("uniform", by_examples=True)},
    "clients evaluated": lambda: {"client_evaluation": fl.ClientEvaluation(1, "val_acc"), "data": TEST},
    "compared at the end": lambda: {
        "client_evaluation": fl.ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True),
        "data": TEST,
    },
    "server evaluation": lambda: {"server_evaluation": fl.ServerEvaluation(2, 0.5, 8)},
    "Adam at the server": lambda: {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.05)},
    "client validation": lambda: {"data": VALIDATION},
    "clients' parts at the server": lambda: {"data": {"server_set": "clients", **TEST}},
    "public share": lambda: {"data": {"public_share": 0.1}},
    "feature noise": lambda: {"data": {"feature_noise": 0.2}},
    "rebalancing": lambda: {"data": {"rebalancing": fl.LabelAveraging()}},
    "streams": lambda: {"source": Stream},
    "weighted draws": lambda: {"source": Weighted},
    "no validation": lambda: {"source": NoValidation},
    "batchnorm": lambda: {"batchnorm": True},
    "momentum": lambda: {"momentum": 0.9},
    "a layer that thaws": lambda: {"module": Thawing, "batchnorm": True},
    "validation every second round": lambda: {"trainer": {"check_val_every_n_epoch": 2}},
}
MODULES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (AdamW, Following, Manual, Remembering, Scheduled, ThreeLines)},
    "TwoOptimizers": TwoOptimizers,
    "an adaptive loss": adaptive,
}


def layer() -> fl.PersonalPart:
    """Return the first layer, of whichever module."""
    return fl.PersonalPart(names="0.*")


def timed(*between: Any, **settings: Any) -> fl.Availability:
    """Return clients whose training takes simulated time."""
    return fl.Availability(clock=fl.Clock(*between, **settings))


def single(name: str) -> Options:
    """Return new settings of an option."""
    tables = {"strategy": STRATEGIES, "route": ROUTES, "attackers": ATTACKERS, "local": LOCAL}
    for argument, table in tables.items():
        if name in table:
            return {argument: table[name]()}
    return {"module": MODULES[name]} if name in MODULES else {**WITH_MORE, **OTHERS}[name]()


def merged(one: Options, other: Options) -> Options | None:
    """Return the settings of two options; None if they disagree about one. Lists are joined."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        if isinstance(mine, list):
            found[name] = [*mine, *theirs]
        elif isinstance(mine, fl.Availability) and (mine.clock is None) != (theirs.clock is None):
            found[name] = replace(theirs if mine.clock else mine, clock=mine.clock or theirs.clock)
        elif not isinstance(mine, dict) or any(mine[key] != theirs[key] for key in mine.keys() & theirs.keys()):
            return None
        else:
            found[name] = {**mine, **theirs}
    return found


def set_up(options: Options) -> None:
    """Begin a fit with these settings.

    Raises:
        Started: if nothing refuses them.
    """
    chosen = dict(options)
    torch.manual_seed(11)
    module = chosen.pop("module", Plain)(batchnorm=chosen.pop("batchnorm", False), momentum=chosen.pop("momentum", 0.0))
    data = data_of(chosen.pop("source", Blobs), chosen.pop("data", {}))
    flags = {"num_sanity_val_steps": 0, **chosen.pop("trainer", {})}
    local = fl.LocalTraining(**{"max_epochs": 2, "threads": 1, **chosen.pop("local", {})})
    federation = fl.FederatedOrchestrator(local=local, **{"strategy": fl.FedAvg("uniform"), **chosen})
    trainer(3, federation, Stop(), **flags).fit(module, data)


def data_of(source: Any, settings: Options) -> fl.FederatedDataModule:
    """Return the data of five clients, and a few examples more for a public share; sources without it have fewer."""
    if source is Stream:
        clients = zip(*(tensor.split(SIZES) for tensor in Blobs(n=sum(SIZES)).train), strict=True)
        streams = {f"{k}": Stream(*own) for k, own in enumerate(clients)}
        return fl.FederatedDataModule.from_clients(streams, val=TensorDataset(*Blobs().val), batch_size=5, **settings)
    if source is NoValidation:
        return fl.FederatedDataModule(NoValidation(), Consecutive((7, 9, 8, 6, 6)), **settings)
    return fl.FederatedDataModule(source(n=sum(SIZES) + 8), Consecutive(SIZES), **settings)


def outcome(options: Options) -> str:
    """Return whether settings are accepted; otherwise the error's class and the settings that its message names."""
    try:
        set_up(options)
    except Started:
        return "accepted"
    except Exception as error:
        named = sorted(set(re.findall(r"(?<!\w)'([A-Za-z_][\w.]*)'(?!\w)", str(error))))
        return f"refused: {type(error).__name__}: {', '.join(named)}"
    return "ended without a round"


def pairs(only: Sequence[str] = ()) -> dict[str, str]:
    """Return the outcome of each option and of each pair; with names, of those alone that contain one of these."""
    tables: tuple[dict[str, Any], ...] = (STRATEGIES, WITH_MORE, ROUTES, ATTACKERS, LOCAL, OTHERS, MODULES)
    names = [name for table in tables for name in table]
    assert len(set(names)) == len(names)
    found = {name: outcome(single(name)) for name in names if not only or name in only}
    for one, other in combinations(names, 2):
        both = merged(single(one), single(other))
        if both is not None and (not only or one in only or other in only):
            found[f"{one} + {other}"] = outcome(both)
    return found
