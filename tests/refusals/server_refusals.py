"""Faults, availability, evaluation at the server, checkpoints, and what acts on a Trainer's steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from engine_runs import variant
from federations import Blobs, Plain, blobs, federate, trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    TQDMProgressBar,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from refusing import Refusal, fitting
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.data.loaders import reduced
from fl_lightning.errors import EngineError

STACKED = fl.LocalTraining(engine="stacked")


# ---------------------------------------------------------------- calls that fail


def trusting(names: Any) -> Callable[[], Any]:
    return lambda: fl.Checkpoints(trusted_classes=names)


def calling(callback: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: federate(Plain(batchnorm=True), 1, callback())


def at_clients(callback: Callable[[], Any], **local: Any) -> Callable[[], Any]:
    return lambda: federate(Plain(), 1, local=fl.LocalTraining(callbacks=[callback()], **local))


def bf16_of(precision: Any, dtype: torch.dtype) -> Callable[[], Any]:
    """Evaluate in bfloat16 models that are stored in another precision than 32 bits."""
    settings = {
        "local": fl.LocalTraining(precision=precision),
        "server_evaluation": fl.ServerEvaluation(precision="bf16-mixed"),
    }
    return lambda: federate(Plain().to(dtype), 1, data=Blobs(dtype=dtype), strategy=fl.AdaFed("val_acc"), **settings)


def loader(n: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*blobs(n, 1)), batch_size=5)


# ---------------------------------------------------------------- what they are given


class Weightless(fl.JointStrategy):
    def combine(self, updates: Any, worth: Any) -> Any:
        return updates[0].state.double(), [math.nan] * len(updates)


class Milestones(LearningRateFinder):
    """As in Lightning's documentation: it would find a new rate at some epochs, which here are rounds."""


class Own(fl.FederatedOrchestrator):
    """A user's subclass."""


class Following(Plain):
    """A target follows the network, as in BYOL."""

    moves: Any = staticmethod(lambda batches: True)

    def __init__(self) -> None:
        super().__init__()
        self.target = torch.nn.Linear(4, 8).requires_grad_(False)
        self.train_acc = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.moves(self.trainer.num_training_batches):
            for own, followed in zip(self.target.parameters(), self.net[0].parameters(), strict=True):
                own.data = own.data * 0.8 + followed.data * 0.2
        return F.cross_entropy(self(batch[0]), batch[1])


OneMoves = variant(Following, moves=staticmethod(lambda batches: batches == 4))
Declares = variant(Following, constant_parts=("target",))
TwoSets = variant(Blobs, val_dataloader=lambda self: [Blobs.val_dataloader(self), Blobs.val_dataloader(self)])


REFUSALS = [
    # faults and availability
    Refusal(fitting(faults=fl.Faults("skip", min_updates=7)), "'federation.faults.min_updates' must be at most the 3 clients"),
    Refusal(fitting(faults=fl.Faults("skip"), route=fl.FedCyclic()), "FedCyclic needs every client in every round"),
    Refusal(
        fitting(availability=fl.Availability(leave=0.1), route=fl.LocalOnly("val_acc")),
        "'federation.availability' may lose some",
    ),
    Refusal(fitting(faults=fl.Faults(deadline=9), local=STACKED), "'federation.faults.deadline' is checked between a client's"),
    Refusal(
        fitting(availability=fl.Availability(slow=1.0), local=fl.LocalTraining(engine="stacked")),
        "'federation.availability.slow' is checked between a client's steps",
    ),
    Refusal(
        fitting(availability=fl.Availability(drop_out=0.99), faults=fl.Faults(min_updates=3)),
        "of 3 clients are available, but the round needs 3. Lower 'federation.faults.min_updates'",
        fl.ClientError,
    ),
    Refusal(fitting(strategy=Weightless()), "Weightless gave 3 updates the weights", fl.ClientError),
    # evaluation at the server
    *(
        Refusal(lambda share=share: fl.ServerEvaluation(examples=share), "'federation.server_evaluation.examples' must be a")
        for share in (0, 1.5)
    ),
    Refusal(bf16_of("64-true", torch.float64), "models are stored in 64-true. Remove it"),
    Refusal(bf16_of("bf16-true", torch.float32), "models are stored in bf16-true. Remove it"),
    Refusal(
        lambda: reduced(TwoSets().val_dataloader(), 10, None, 0),
        "cannot divide a list. Let 'val_dataloader' return one DataLoader",
        fl.DataError,
    ),
    # former settings
    *(
        Refusal(lambda name=name: fl.FederatedOrchestrator(**{name: None}), f"'{name}' is now {now}")
        for name, now in fl.FederatedOrchestrator.renamed.items()
    ),
    # checkpoints
    Refusal(trusting(["no.such.Class"]), "trusted_classes' contains 'no.such.Class', which cannot be imported"),
    Refusal(trusting(["collections.NoSuch"]), "which cannot be imported"),
    Refusal(trusting(["os.system"]), "'os.system', which can run arbitrary code"),
    *(
        Refusal(trusting([name]), "which can run arbitrary code")
        for name in ("builtins.eval", "torch.os.system", "subprocess.Popen")
    ),
    Refusal(trusting("argparse.Namespace"), "'trusted_classes' must be a list of texts, but is ... Put it in a list"),
    Refusal(trusting([3]), "'trusted_classes' must be a list of texts, but is [3]"),
    # targets that follow the network
    *(
        Refusal(fitting(module=Following, **parts), f"Training changes 'target...{named} does not cover such tensors")
        for named, parts in (
            ("FedMedian", {"strategy": fl.FedMedian()}),
            ("TrimmedMean", {"strategy": fl.TrimmedMean(1)}),
            ("ShapleyValues", {"strategy": fl.ShapleyValues("val_acc")}),
            ("ClipUpdate", {"transforms": [fl.ClipUpdate(1.0)]}),
            ("ALIE", {"attackers": fl.Attackers(clients=[1], model=fl.ALIE(1.0))}),
            ("'federation.secure_aggregation'", {"secure_aggregation": fl.SecureAggregation()}),
            ("'federation.local.privacy'", {"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7))}),
        )
    ),
    Refusal(fitting(module=OneMoves, route=fl.RingFed(2, 0.8)), "has not changed the frozen tensor 'target.bias', but other"),
    Refusal(fitting(module=Declares), "Training changed 'target.weight', which Variant declares constant"),
    Refusal(fitting(module=Following, local=STACKED), "", EngineError),
    # tools of the Trainer that act on steps
    *(
        Refusal(calling(callback), words)
        for callback, words in (
            (Milestones, "Milestones would tune rounds"),
            (BatchSizeFinder, "BatchSizeFinder would tune rounds ... Tune without a federation"),
            (lambda: GradientAccumulationScheduler({1: 2}), "GradientAccumulationScheduler would accumulate rounds"),
            (lambda: ModelPruning("l1_unstructured", amount=0.5), "ModelPruning would prune the server's weights"),
            (lambda: StochasticWeightAveraging(0.1), "StochasticWeightAveraging would set the rate of the server's optimizer"),
            (BackboneFinetuning, "BackboneFinetuning would set the rate of the server's optimizer"),
            (SpikeDetection, "SpikeDetection would look for the loss of a training step"),
            (lambda: ThroughputMonitor(batch_size_fn=len), "ThroughputMonitor would measure batches of examples"),
            *(
                (
                    kind,
                    "The Trainer has 2 callbacks that federate the module: FederatedOrchestrator, "
                    f"{kind.__name__}. Keep one of them.",
                )
                for kind in (fl.FederatedOrchestrator, Own)
            ),
        )
    ),
    *(
        Refusal(at_clients(callback), f"'federation.local.callbacks' contains {words}")
        for callback, words in (
            (ModelCheckpoint, "ModelCheckpoint, which writes checkpoints"),
            (lambda: OnExceptionCheckpoint("."), "OnExceptionCheckpoint, which writes checkpoints"),
            (TQDMProgressBar, "TQDMProgressBar, which shows progress"),
            (LearningRateFinder, "LearningRateFinder, which would tune each client anew"),
            (BatchSizeFinder, "BatchSizeFinder, which would tune each client anew"),
            (BackboneFinetuning, "BackboneFinetuning, which keeps a state for the rest of a training"),
        )
    ),
    *(
        Refusal(at_clients(TQDMProgressBar, engine=engine), "'federation.local.callbacks' contains TQDMProgressBar")
        for engine in ("fabric", "stacked")
    ),
    Refusal(fitting(flags={"val_check_interval": 3}), "'trainer.val_check_interval' is 3, but a federation validates between"),
    # data that come as loaders
    Refusal(
        lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), loader(), loader()),
        "FederatedDataModule.from_loaders(train_loader, val_loader, part",
    ),
    Refusal(lambda: fl.FederatedDataModule(loader(), fl.IIDPartitioner(2)), "must be a LightningDataModule, but is"),
]
