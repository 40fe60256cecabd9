"""Networks, their pretrained weights, frozen parts and scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from algorithms import Scaled
from client_sites import fitted
from federations import SIZES, Blobs, Consecutive, Plain, federate, network
from refusing import Refusal, fitting
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning.core.capabilities import Capability, Removal
from fl_lightning.functional.exact_moments import moments_of, together


def told(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, fl.DataError)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return ((torch.ones(4), 0) for _ in range(9))


class Hides(fl.Option):
    """An option with which the server sees no single client."""

    def removes(self) -> Any:
        yield Removal(Capability.SINGLE_UPDATES, "it hides them", "remove it")


class Seals(Hides):
    """It says that it adds up what it hides, and does not."""

    seals = True


class Words(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader([{"text": torch.ones(3)} for _ in range(sum(SIZES))], batch_size=5)


class Holding(Blobs):
    """Points with a value in a column."""

    def __init__(self, rows: Any, column: int, value: float) -> None:
        super().__init__()
        self.train[0][rows, column] = value


class Wrong(Blobs):
    def statistics(self, batches: Any) -> Any:
        return 3


class Twice(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.more = fl.Standardized(fl.MLP(4, [2], 3), 4)


class Changing(Scaled):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 2, batch[1]]


class Wide(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = fl.Standardized(network(), 5)


class Bare(Scaled):
    """Without metrics, which private steps do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.train_acc = None


def scaling(module: Any = Scaled, **settings: Any) -> Callable[[], Any]:
    return fitting(module=module, **settings)


PRIVATE = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7))
CHANNELS = "The inputs have 4 channels, but 'model.network.num_features' is 5. Set it to 4."
INFINITE = {"data": Holding(10, 2, math.inf)}

SCALES = [
    told(scaling(data=Wrong()), "'statistics' of Wrong returned a int. Return what 'fl_lightning.functional.exact_mom"),
    Refusal(scaling(transforms=[fl.ClientPrivacy(1.0, 1.0, "local", noise_seed=1)]), "inputs, which get no noise, ... does"),
    Refusal(scaling(Bare, local=PRIVATE), "get no noise, but 'federation.local.privacy' does not cover"),
    Refusal(scaling(options=[Hides()]), "Standardized reads sums of each client, but it hides them"),
    Refusal(scaling(options=[Seals()]), "Standardized needs the sums of the inputs over all clients, which no option adds up"),
    told(scaling(Wide), CHANNELS),
    told(scaling(Wide, secure_aggregation=fl.SecureAggregation()), CHANNELS),
    told(scaling(**INFINITE), "The inputs cannot be measured: A number is infinite"),
    told(scaling(secure_aggregation=fl.SecureAggregation(), **INFINITE), "The inputs cannot be measured: A number is infinite"),
    Refusal(scaling(Changing), "Changing changes batches in 'on_after_batch_transfer', but Standardized is measured before"),
    Refusal(scaling(Twice), "Twice contains Standardized 2 times"),
    told(scaling(data=Words()), "but a batch is a dict. Scale such inputs in the module itself"),
    told(scaling(data=Holding(slice(None), 2, math.nan)), "No client has a number for channel 2 of the inputs. Leave it out"),
    told(
        lambda: fitted(fl.FederatedDataModule.from_clients({"a": DataLoader(Stream(), batch_size=3)}), module=Scaled),
        "Client a trains on a stream, whose inputs cannot be measured before training",
    ),
    Refusal(lambda: fl.Standardized(fl.MLP(), 0), "'model.network.num_features' must be at least 1"),
    told(lambda: together([moments_of(torch.ones(2, 3)), moments_of(torch.ones(2, 2))]), "Inputs have different numbers of"),
]


def freezing(parts: Any = ("net.0", "net.1"), rounds: int = 1, settings: Any = None, **times: Any) -> Callable[[], Any]:
    return lambda: federate(Plain(batchnorm=True), rounds, fl.TransferLearning(list(parts), **times), **(settings or {}))


def resnet(content: Any = None) -> Callable[[], Any]:
    def call() -> None:
        Path("own.pt").write_text("nothing") if content is None else torch.save(content, "own.pt")
        fl.ResNet18(weights="own.pt")

    return call


def alone() -> None:
    federation = {"client_evaluation": fl.ClientEvaluation(0, "val_acc", compare_alone=True)}
    data = fl.FederatedDataModule(Blobs(), Consecutive(), client_test=0.2)
    fitted(data, fl.TransferLearning(["net.0"], thaw_after=1), rounds=3, **federation)


NETWORKS = [
    *(
        Refusal(freezing(rounds=3, settings=settings, thaw_after=1), words)
        for settings, words in (
            ({"strategy": fl.Scaffold()}, "In round 1, 'control' of Scaffold.broadcast is a tensor of shape ..., but"),
            ({"transforms": [fl.TopK(0.5)]}, "The trained parameters changed in round 1, but clients keep"),
            ({"route": fl.LocalOnly("val_acc")}, "The trained parameters changed in round 1, but clients keep"),
        )
    ),
    Refusal(alone, "compare_alone' to false, or freeze the same parts in all rounds"),
    Refusal(freezing(["top"]), "cannot freeze 'top', which is not a part of Plain with parameters. Set 'parts' to some"),
    Refusal(freezing(["net.2"]), "cannot freeze 'net.2', which is not a part of Plain with parameters"),
    Refusal(freezing(["net"]), "TransferLearning freezes every trained parameter of Plain: 'parts' is ['net']"),
    Refusal(lambda: fl.TransferLearning(["a"], thaw_after=2, freeze_after=2), "thaw_after' must ... 'freeze_after', 2, or"),
    Refusal(resnet({"conv1.weight": torch.ones(1)}), "are not those of torchvision's resnet18: Missing key"),
    Refusal(resnet([1, 2]), "are not those of torchvision's resnet18: Expected state_dict to be dict-like, got <class 'list'>"),
    Refusal(resnet(), "Cannot load the weights ... of resnet18 ( ... Set 'model.network.weights' to a file with a state dict"),
    Refusal(lambda: fl.ResNet18(weights="IMAGENET9"), "neither a file nor one of torchvision's ... or to one of IMAGENET1K_V1"),
    Refusal(lambda: fl.ResNet18(channels=1, weights="DEFAULT"), "must be null if 'channels' is not 3"),
]
REFUSALS = [*SCALES, *NETWORKS]
