"""The server, the Trainer around it, and the types of arguments."""

import math
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from client_sites import fitted
from engine_runs import stepping, variant
from federations import Blobs, Consecutive, Plain, blobs, changed, federate, trainer
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from refusing import Refusal, fits, fitting, made, told
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fl_lightning as fl
from fl_lightning.data.loaders import reduced, sharded
from fl_lightning.errors import EngineError

# ------ Faults, evaluation at the server, checkpoints


STACKED = fl.LocalTraining(engine="stacked")
IN_BF16 = {"server_evaluation": fl.ServerEvaluation(precision="bf16-mixed"), "strategy": fl.AdaFed("val_acc")}


def trusting(names: Any) -> Callable[[], Any]:
    return lambda: fl.Checkpoints(trusted_classes=names)


def calling(callback: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: federate(Plain(batchnorm=True), 1, callback())


def at_clients(callback: Callable[[], Any], **local: Any) -> Callable[[], Any]:
    return lambda: federate(Plain(), 1, local=fl.LocalTraining(callbacks=[callback()], **local))


def loader(n: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*blobs(n, 1)), batch_size=5)


Own = made("Own", fl.FederatedOrchestrator)  # A user's subclass
Weightless = made("Weightless", fl.JointStrategy, combine=lambda self, sent, _: (sent[0].state.double(), [math.nan] * 3))


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


SERVER = [
    # faults and availability
    fits("'federation.faults.min_updates' must be at most the 3 clients", faults=fl.Faults("skip", min_updates=7)),
    fits("'federation.availability' may lose some", availability=fl.Availability(leave=0.1), route=fl.LocalOnly("val_acc")),
    fits("'federation.faults.deadline' is checked between a client's", faults=fl.Faults(deadline=9), local=STACKED),
    fits("'federation.availability.slow' is checked between a", availability=fl.Availability(slow=1.0), local=STACKED),
    Refusal(
        fitting(availability=fl.Availability(drop_out=0.99), faults=fl.Faults(min_updates=3)),
        "of 3 clients are available, but the round needs 3. Lower 'federation.faults.min_updates'",
        fl.ClientError,
    ),
    Refusal(fitting(strategy=Weightless()), "Weightless gave 3 updates the weights", fl.ClientError),
    # evaluation at the server
    *(
        fits(f"models are stored in {stored}. Remove it", local=fl.LocalTraining(precision=stored), **IN_BF16)
        for stored in ("64-true", "bf16-true")
    ),
    told(lambda: reduced([loader(), loader()], 10, None, 0), "cannot divide a list. Let 'val_dataloader' return one"),
    # former settings
    *(
        Refusal(lambda name=name: fl.FederatedOrchestrator(**{name: None}), f"'{name}' is now {now}")
        for name, now in fl.FederatedOrchestrator.renamed.items()
    ),
    # checkpoints
    Refusal(trusting(["no.such.Class"]), "trusted_classes' contains 'no.such.Class', which cannot be imported"),
    *(Refusal(trusting([name]), f"'{name}', which can run") for name in ("os.system", "builtins.eval", "torch.os.system")),
    Refusal(trusting("argparse.Namespace"), "'trusted_classes' must be a list, but is 'argparse.Namespace'"),
    # targets that follow the network
    *(
        fits(f"Training changes 'target...{named} does not cover such tensors", module=Following, **parts)
        for named, parts in (
            ("FedMedian", {"strategy": fl.FedMedian()}),
            ("ShapleyValues", {"strategy": fl.ShapleyValues("val_acc")}),
            ("ClipUpdate", {"transforms": [fl.ClipUpdate(1.0)]}),
            ("ALIE", {"attackers": fl.Attackers(clients=[1], model=fl.ALIE(1.0))}),
            ("'federation.secure_aggregation'", {"secure_aggregation": fl.SecureAggregation()}),
            ("'federation.local.privacy'", {"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7))}),
        )
    ),
    fits("has not changed the frozen tensor 'target.bias', but other", module=OneMoves, route=fl.RingFed(2, 0.8)),
    fits("Training changed 'target.weight', which Variant declares constant", module=Declares),
    Refusal(fitting(module=Following, local=STACKED), "", EngineError),
    # tools of the Trainer that act on steps
    *(
        Refusal(calling(callback), words)
        for callback, words in (
            (callbacks.BatchSizeFinder, "BatchSizeFinder would tune rounds ... Tune without a federation"),
            (lambda: callbacks.GradientAccumulationScheduler({1: 2}), "GradientAccumulationScheduler would accumulate rounds"),
            (lambda: callbacks.ModelPruning("l1_unstructured", amount=0.5), "ModelPruning would prune the server's weights"),
            (callbacks.BackboneFinetuning, "BackboneFinetuning would set the rate of the server's optimizer"),
            (SpikeDetection, "SpikeDetection would look for the loss of a training step"),
            (lambda: ThroughputMonitor(batch_size_fn=len), "ThroughputMonitor would measure batches of examples"),
            (Own, "The Trainer has 2 callbacks that federate the module: FederatedOrchestrator, Own. Keep one"),
        )
    ),
    *(
        Refusal(at_clients(callback), f"'federation.local.callbacks' contains {words}")
        for callback, words in (
            (callbacks.ModelCheckpoint, "ModelCheckpoint, which writes checkpoints"),
            (callbacks.TQDMProgressBar, "TQDMProgressBar, which shows progress"),
            (callbacks.BatchSizeFinder, "BatchSizeFinder, which would tune each client anew"),
            (callbacks.BackboneFinetuning, "BackboneFinetuning, which keeps a state for the rest of a training"),
        )
    ),
    fits("'trainer.val_check_interval' is 3, but a federation validates between", flags={"val_check_interval": 3}),
]


# ------ Types of arguments, data that cannot be federated, rounds


TENSORS = TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))


def wrong_types() -> list[Refusal]:
    orchestrator, data = fl.FederatedOrchestrator, fl.FederatedDataModule
    rows = {
        "'strategy' must be a Strategy or None, but is 'FedAvg'.": lambda: orchestrator("FedAvg"),
        "'strategy' must be a Strategy or None, but is the class FedAvg. Write FedAvg().": lambda: orchestrator(fl.FedAvg),
        "FederatedDataModule: 'partitioner' must be a Partitioner or None, but is 8.": lambda: data(Blobs(), 8),
        "'num_clients' must be a whole number, but is 4.0.": lambda: fl.IIDPartitioner(4.0),
        "must be a LocalTraining, but is {'max_epochs': 2}.": lambda: orchestrator(local={"max_epochs": 2}),
        "'clients_per_round' must be a finite number, but is 'half'.": lambda: orchestrator(clients_per_round="half"),
        "'clients_per_round' must be a finite number, but is True.": lambda: orchestrator(clients_per_round=True),
        "'server_optimizer' must be a function or None, but is 'adam'.": lambda: orchestrator(server_optimizer="adam"),
        "'transforms' must be a list or None, but is of type ClipUpdate.": lambda: orchestrator(transforms=fl.ClipUpdate(1.0)),
        "must be a list or None, but is 'net.3'.": lambda: orchestrator(personal="net.3"),
        "Attackers: 'model' must be a ModelAttack or None, but is 'SignFlip'": lambda: fl.Attackers(model="SignFlip"),
        "'options' must be": lambda: orchestrator(options=[fl.Scaffold()]),
    }
    unknown = Refusal(lambda: fl.IIDPartitioner(clients=3), "unexpected keyword argument 'clients'", TypeError)
    return [*(Refusal(call, words) for words, call in rows.items()), unknown]


Stream = made("Stream", IterableDataset, __iter__=lambda self: iter(()))


def divided(data: Any, partitioner: Any = None, **more: Any) -> Any:
    return lambda: fl.FederatedDataModule(data, partitioner or fl.IIDPartitioner(2), **more).setup("fit")


def giving(part: Any) -> Any:
    """Return a partitioner whose second client has this part."""
    return variant(fl.IIDPartitioner, partition=lambda self, n, y: [torch.arange(2), part])(2)


def labelled(label: int) -> Blobs:
    """Return data whose sixth label is no class."""
    data = Blobs()
    data.train[1][5] = label
    return data


def task_on(label: int) -> Any:
    """Return a call that fits a task to data with such a label, which nobody read before."""
    return fitting(module=lambda: fl.ClassificationTask(Plain().net, 3), data=labelled(label), partitioner=fl.IIDPartitioner(3))


LARGE = "An example has the label 1000000000000, but classes are numbered from 0 to below 1,000,000. Correct or remove it"
DATA = [
    told(divided(labelled(10**12), fl.DirichletPartitioner(3)), LARGE),
    told(lambda: fitted(fl.FederatedDataModule(labelled(10**12), Consecutive(), rebalancing=fl.LabelAveraging())), LARGE),
    Refusal(task_on(-1), "The labels go from -1 ... but the model has classes 0 to 2", fl.DataError),
    Refusal(task_on(3), "labels go from 0 to 3, but the model has classes 0 to 2. Set 'model.num_classes'", fl.DataError),
    Refusal(divided(L.LightningDataModule()), "has no 'train_dataloader', but a federation needs one torch", fl.DataError),
    Refusal(divided(changed("train", [1, 2])), "returns a list, but a federation needs one torch DataLoader", fl.DataError),
    Refusal(divided(changed("train", DataLoader(Stream()))), "trains on an iterable dataset", fl.DataError),
    Refusal(lambda: sharded(DataLoader(TENSORS), 0, 7), "evaluation set of 6 examples cannot be split over 7 r", fl.DataError),
    Refusal(lambda: fl.FederatedDataModule(Blobs(), Consecutive(), client_test=20), "is 20. Write 0.2 for 20 %"),
    *(
        told(divided(Blobs(12), giving(part)), f"Variant gave client 1 {said} ... Return the indices of each client's examples")
        for part, said in (
            (torch.ones(12, dtype=torch.bool), "tensor([True, True, True"),
            (torch.zeros(2, 2, dtype=torch.int64), "tensor([[0, 0],"),
            ([0.5, 1.0], "[0.5, 1.0], which"),
            ("abc", "'abc', which"),
            (3, "3, which"),
        )
    ),
]


INFINITE = variant(on_train_end=lambda self: self.net[0].weight.data.fill_(math.inf))


def own_rate(lr: float) -> fl.ClassificationTask:
    return fl.ClassificationTask(Plain().net, 3, optimizer=lambda own: torch.optim.SGD(own, lr=lr))


def after(module: Plain, name: str, value: Any) -> Plain:
    setattr(module, name, value)
    return module


ROUNDS = [
    Refusal(lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), Blobs()), "'fit' got Blobs. Wrap your datamodule:"),
    Refusal(lambda: trainer(1, fl.FederatedOrchestrator()).fit(Plain(), loader()), "got no datamodule ... from_loaders("),
    fits("whole number of clients, but is 2.0. Write 2 for a number, or 0.02 for 2 %.", clients_per_round=2.0),
    fits("a number of clients from 1 to 3 (there are 3 clients), but is 4", clients_per_round=4),
    Refusal(
        fitting(module=stepping(lambda module, x, y, k: F.cross_entropy(module(x), y) * math.nan)),
        "Client 1 (of 20 examples) in round 0: the training loss is nan ... Lower its learning rate",
        fl.ClientError,
    ),
    Refusal(fitting(module=INFINITE), "in round 0: the weights that it sent are not finite", fl.ClientError),
    fits("'model.optimizer' rejects its settings: Invalid learning rate: -0.5", module=lambda: own_rate(-0.5)),
    fits("'training_step' of Plain was replaced on the", module=lambda: after(Plain(), "training_step", lambda *_: None)),
    Refusal(fitting(module=stepping(lambda *_: 1 / 0)), "division by zero", ZeroDivisionError),
    *(
        fits(f"'trainer.{name}' is {value}, but ... Remove it and set 'federation.local.{name}' in", flags={name: value})
        for name, value in (("limit_train_batches", 1), ("gradient_clip_val", 1.0), ("accumulate_grad_batches", 2))
    ),
]

REFUSALS = [*SERVER, *wrong_types(), *DATA, *ROUNDS]
