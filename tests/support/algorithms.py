"""Every algorithm in one line each, small: what the tests of resume and of several ranks run through."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from adaptive import Adapting
from client_sites import Stream
from federations import CLASSES, Blobs, Consecutive, Plain, client_scores, network, weights
from own_option import DropNumbers
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import fl_lightning as fl

SIZES, BATCH = (7, 22, 12, 9, 12), 9
"""Five clients of one to three batches, none of which ends on a batch of one, as BatchNorm needs."""


class OneBroken(Blobs):
    """Client 1's inputs are not numbers."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.train[0][SIZES[0] : SIZES[0] + SIZES[1]] = torch.nan


class Weighted(Blobs):
    """Draws examples by their weights."""

    def train_dataloader(self) -> Any:
        draws = WeightedRandomSampler(self.train[0][:, 0].exp().tolist(), len(self.train[0]))
        return DataLoader(TensorDataset(*self.train), self.batch_size, sampler=draws)


class Streams:
    """A stream for each client, read by a loader of its own; in place of a set that is divided."""

    def __init__(self, n: int, batch_size: int) -> None:
        self.whole = Blobs(n, batch_size)

    def divided(self) -> fl.FederatedDataModule:
        parts = zip(*(tensor.split(SIZES) for tensor in self.whole.train), strict=True)
        val, sets = TensorDataset(*self.whole.val), {f"{k}": Stream(TensorDataset(*own)) for k, own in enumerate(parts)}
        return fl.FederatedDataModule.from_clients(sets, val=val, batch_size=self.whole.batch_size)


class Thawing(Plain):
    """Its first layer is frozen for the first of the rounds."""

    def configure_callbacks(self) -> list[Any]:
        return [fl.TransferLearning(["net.0", "net.1"], thaw_after=1)]


class Scheduled(Plain):
    """A schedule over steps, and one that follows the losses that a client logs."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        over_steps = {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30), "interval": "step"}
        return [optimizer], [over_steps, {"scheduler": plateau, "monitor": "train_loss_epoch"}]


class Following(Plain):
    """A target follows the network, at clients with three batches or more, and another is in evaluation mode."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.target = torch.nn.Linear(4, 8).requires_grad_(False)
        self.resting = torch.nn.Linear(4, 8).requires_grad_(False).eval()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trainer.num_training_batches >= 3:
            for target in (self.target, self.resting):
                for own, followed in zip(target.parameters(), self.net[0].parameters(), strict=True):
                    own.data = own.data * 0.9 + followed.data * 0.1
        return super().training_step(batch, batch_idx)


class Remembering(Plain):
    """Counts its steps, collects its losses, and keeps a queue for each client."""

    client_state = ("queue",)

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.count, self.losses = 0, []
        self.register_buffer("queue", torch.zeros(4))
        self.draws = torch.Generator().manual_seed(1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.count += 1
        scale = 1 + self.count / 100 + len(self.losses) / 50 + self.queue.abs().mean() + torch.rand((), generator=self.draws)
        self.queue = torch.cat([batch[0][:1, 0], self.queue])[:4]
        self.losses.append(0.0)
        return super().training_step(batch, batch_idx) * scale


class Hidden(Plain):
    """Registers a buffer in training, draws from generators in a dictionary, and gathers from other processes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.draws = {"steps": [torch.Generator()]}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(4, device=self.device))
        self.late = self.late * 0.9 + batch[0].mean(0) * 0.1
        noise = torch.rand((), generator=self.draws["steps"][0])
        others = [torch.zeros(4) for _ in range(distributed.get_world_size())] if distributed.is_initialized() else []
        if others:  # as contrastive losses do, which would mix clients here
            distributed.all_gather(others, batch[0].mean(0))
        return super().training_step((batch[0] - self.late + sum(others), batch[1]), batch_idx) * (1 + noise)


class Changing(Plain):
    """Changes its hyperparameters, what trains and what rests, and by hand the settings of its optimizer."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.hparams.temperature = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.hparams.temperature *= 0.9
        self.hparams.late = 0.9 * self.hparams.get("late", 1.0)
        if self.global_step == 1:
            self.net[0].requires_grad_(False)
            self.net[1].eval()
        return super().training_step(batch, batch_idx) * self.hparams.temperature * self.hparams.late

    def on_train_epoch_end(self) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.8
            group["weight_decay"] += 0.01


class Unusual(Plain):
    """Observes inputs as for quantization, in buffers that begin infinite or grow, and has buffers of one byte."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        observers = torch.ao.quantization
        self.whole, self.mean = observers.MinMaxObserver(), observers.MovingAverageMinMaxObserver()
        self.channels = observers.PerChannelMinMaxObserver(ch_axis=1)
        self.register_buffer("tiny", torch.ones(4).to(torch.float8_e4m3fn))
        self.register_buffer("shift", torch.full((1,), 0.5).expand(3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.net[0] = torch.nn.utils.weight_norm(self.net[0])  # the older one keeps its weight in an attribute

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for observer in (self.whole, self.channels, self.mean):
            observer(batch[0])
        self.tiny = torch.full_like(self.tiny.float(), 1.5).to(torch.float8_e4m3fn)
        x = (batch[0] - self.mean.min_val) * self.tiny.to(batch[0]) + self.shift.sum()
        return super().training_step((x, batch[1]), batch_idx)


class Scaled(Plain):
    """Its inputs are scaled by the mean and the deviation of all clients."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.net = fl.Standardized(self.net, 4)


def adaptive(batchnorm: bool, momentum: float) -> fl.ClassificationTask:
    """Return a task with a loss that the server adapts, and with dropout."""
    net = torch.nn.Sequential(*network(batchnorm)[:-1], torch.nn.Dropout(0.2), torch.nn.Linear(8, CLASSES))
    return fl.ClassificationTask(net, CLASSES, fl.F1WeightedCrossEntropy(CLASSES), lambda p: torch.optim.SGD(p, 0.1, momentum))


class ThreeLines(Plain):
    """A linear model."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 3))


class Clusters(fl.KMeansTask):
    """Three clusters of the blobs."""

    def __init__(self, **_: Any) -> None:
        super().__init__(3, 4)


HEAD = fl.PersonalPart(names="net.3.*")
KEPT = {"module": Scheduled, "local": {"optimizer_state": "kept"}, "momentum": 0.9}
DECAYING = {**KEPT, "local": {"optimizer_state": "kept", "lr_decay": 0.9}}
OWN_TESTS = {"data": {"client_test": 0.3}, "client_evaluation": fl.ClientEvaluation(1, "val_acc"), "more": 8}
"""What cases share; each makes a dictionary of its own."""

ALGORITHMS: dict[str, Callable[[], dict[str, Any]]] = {
    "fedavg": lambda: {"clients_per_round": 0.6},
    "fedsgd": lambda: {"strategy": fl.FedSGD(), "local": {"full_batch": True, "max_epochs": 1}},
    "fedavgm": lambda: {"strategy": fl.FedAvgM(0.7)},
    "fedadam": lambda: {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.05, eps=1e-3)},
    "fedyogi": lambda: {"server_optimizer": lambda p: fl.Yogi(p, lr=0.05)},
    "fedmedian": lambda: {"strategy": fl.FedMedian(), "clients_per_round": 4},
    "trimmed mean": lambda: {"strategy": fl.TrimmedMean(1), "clients_per_round": 4},
    "krum": lambda: {"strategy": fl.Krum(1, selected=2)},
    "geometric median": lambda: {"strategy": fl.GeometricMedian(examples=True), "clients_per_round": 4},
    "cosine filter": lambda: {"strategy": fl.CosineFilter(-0.5)},
    "fedloss": lambda: {"strategy": fl.FedLoss(examples=0.5), "data": {"client_validation": 0.4}},
    "adafed": lambda: {"strategy": fl.AdaFed("val_acc", power=2, examples=True)},
    "adafed odds": lambda: {"strategy": fl.AdaFed(fl.DiagnosticOddsRatio(3))},
    "adaptive loss": lambda: {
        "module": adaptive,
        "strategy": fl.AdaFed("val_accuracy"),
        "server_optimizer": lambda p: torch.optim.SGD(p, lr=0.9, momentum=0.5),
        "clients_per_round": 0.7,
    },
    "kept optimizers": lambda: {**DECAYING, "clients_per_round": 3},
    "kept in periods": lambda: {**KEPT, "route": fl.RingFed(2, 0.8)},
    "moving targets": lambda: {"module": Following, "strategy": fl.AdaFed("val_acc"), "clients_per_round": 3},
    "moving targets in chains": lambda: {"module": Following, "route": fl.Mediators(2)},
    "moving targets at krum": lambda: {"module": Following, "strategy": fl.Krum(1, selected=2)},
    "python state": lambda: {"module": Remembering, "clients_per_round": 3},
    "hidden tensors": lambda: {"module": Hidden, "clients_per_round": 3},
    "weighted draws": lambda: {"source": Weighted, "clients_per_round": 3},
    "streams": lambda: {
        "source": Streams,
        "module": Scheduled,
        "strategy": fl.AdaFed("val_acc", examples=True),
        "local": {"optimizer_state": "kept"},
        "clients_per_round": 3,
    },
    "fednova": lambda: {"strategy": fl.FedNova(), "local": {"proximal_mu": 0.1}, "momentum": 0.9},
    "shapley": lambda: {"strategy": fl.ShapleyValues("val_acc", exact_up_to=5)},
    "shapley by orders": lambda: {"strategy": fl.ShapleyValues("val_loss", "min", exact_up_to=0, orders=3)},
    "focus": lambda: {"strategy": fl.Focus()},
    "fedprox": lambda: {"local": {"proximal_mu": 0.1, "partial_work": fl.PartialWork(0.4)}},
    "fedprox dropping": lambda: {"local": {"partial_work": fl.PartialWork(0.4, "drop")}},
    "unreliable": lambda: {"availability": fl.Availability(0.3, 0.5, 3.0, 0.3), "faults": fl.Faults("skip"), "seed": 2},
    "broken": lambda: {"strategy": fl.Scaffold(), "faults": fl.Faults("skip"), "source": OneBroken},
    "broken in a chain": lambda: {
        "strategy": fl.ShapleyValues("val_acc", exact_up_to=5),
        "route": fl.Mediators(2),
        "faults": fl.Faults("skip"),
        "source": OneBroken,
    },
    "scaffold": lambda: {"strategy": fl.Scaffold(), "clients_per_round": 3},
    "attackers": lambda: {"attackers": fl.Attackers({1: 0.5, 3: 1.0}, [1, 3]), "clients_per_round": 4},
    "alie": lambda: {
        "strategy": fl.AdaFed("val_acc"),
        "attackers": fl.Attackers(clients=0.4, model=fl.ALIE(1.0), from_round=1),
    },
    "inner product": lambda: {
        "strategy": fl.GeometricMedian(),
        "attackers": fl.Attackers(clients=[0, 3], model=fl.InnerProductManipulation(), labels=fl.PermutedLabels()),
        "clients_per_round": 4,
    },
    "gaussian": lambda: {"strategy": fl.TrimmedMean(1), "attackers": fl.Attackers(clients=[2], model=fl.GaussianUpdate(0.1))},
    "compressed": lambda: {"transforms": [fl.TopK(0.3), fl.Quantize(4, 16)], "clients_per_round": 3},
    "clipped lies": lambda: {
        "strategy": fl.AdaFed("val_acc"),
        "transforms": [fl.ClipUpdate(0.2)],
        "attackers": fl.Attackers(clients=[1], model=fl.ALIE(3.0)),
    },
    "private clients": lambda: {
        "strategy": fl.FedAvg("uniform"),
        "transforms": [fl.ClientPrivacy(0.5, 0.3, noise_seed=7)],
        "clients_per_round": 3,
        "batchnorm": False,
    },
    "local privacy": lambda: {
        "strategy": fl.AdaFed("val_acc"),
        "transforms": [fl.TopK(0.5), fl.ClientPrivacy(0.5, 0.1, "local", noise_seed=7), fl.Quantize()],
        "clients_per_round": 3,
        "batchnorm": False,
    },
    "private examples": lambda: {
        "local": {"privacy": fl.ExamplePrivacy(1.0, 0.5, noise_seed=7), "proximal_mu": 0.1},
        "momentum": 0.9,
        "clients_per_round": 3,
        "batchnorm": False,
    },
    "secure": lambda: {
        "strategy": fl.Scaffold(),
        "secure_aggregation": fl.SecureAggregation(),
        "availability": fl.Availability(0.3),
        "faults": fl.Faults("skip"),
        "seed": 1,
    },
    "fedcyclic": lambda: {"route": fl.FedCyclic()},
    "label averaging": lambda: {"route": fl.FedCyclic(), "data": {"rebalancing": fl.LabelAveraging()}},
    "fedstar": lambda: {"route": fl.FedStar(2, "val_acc")},
    "ringfed": lambda: {"route": fl.RingFed(2, 0.8), "strategy": fl.AdaFed("val_acc")},
    "mediators": lambda: {"route": fl.Mediators(2), "strategy": fl.FedMedian()},
    "warm start": lambda: {"route": fl.WarmStart(1), "strategy": fl.Scaffold()},
    "local only": lambda: {"route": fl.LocalOnly("val_acc")},
    "mocha": lambda: {
        "route": fl.Mocha(update_every=2),
        "module": ThreeLines,
        "local": {"partial_work": fl.PartialWork(0.4)},
        "clients_per_round": 4,
    },
    "standardized": lambda: {"module": Scaled, "clients_per_round": 3, "momentum": 0.9},
    "standardized under masks": lambda: {"module": Scaled, "secure_aggregation": fl.SecureAggregation()},
    "transfer learning": lambda: {"module": Thawing, "strategy": fl.FedAvgM(0.7), "clients_per_round": 4},
    "personal": lambda: {
        "personal": [fl.PersonalPart(modules="torch.nn.BatchNorm1d"), HEAD],
        "strategy": fl.AdaFed("val_acc", scored_by="clients"),
        "transforms": [fl.TopK(0.5)],
        "data": {"client_validation": 0.2, "client_test": 0.3},
        "client_evaluation": fl.ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True),
        "clients_per_round": 4,
        "more": 8,
    },
    "unseen clients": lambda: {
        "strategy": fl.Scaffold(),
        "data": {"client_test": 0.3, "held_out_clients": ["1", "3"]},
        "client_evaluation": fl.ClientEvaluation(1, "val_acc"),
        "clients_per_round": 2,
    },
    "fedrep": lambda: {"strategy": fl.FedRep(), "personal": [replace(HEAD, start="mean")], "clients_per_round": 3},
    "fedbabu": lambda: {"strategy": fl.FedBABU(), "personal": [HEAD], "transforms": [fl.Quantize(8)]},
    "fedbuff": lambda: {
        **DECAYING,
        "strategy": fl.FedBuff(0.9, 0.5),
        "asynchronous": fl.Asynchronous(4, 2),
        "availability": fl.Availability(0.2, 0.4, 2.0, 0.2, clock=fl.Clock("lognormal", "exponential")),
        "faults": fl.Faults("skip"),
        "transforms": [fl.TopK(0.5)],
        "personal": [HEAD],
    },
    "fedasync": lambda: {
        "strategy": fl.FedAsync(a=0.3),
        "local": {"proximal_mu": 0.1},
        "asynchronous": fl.Asynchronous(0.8),
        "availability": fl.Availability(clock=fl.Clock(between_jobs="half_normal")),
        "attackers": fl.Attackers({1: 0.5}, [1, 3]),
        "data": {"client_test": 0.3},
        "client_evaluation": fl.ClientEvaluation(1, "val_acc", compare_alone=True),
        "more": 8,
    },
    "asynchronous median": lambda: {
        "strategy": fl.FedMedian(),
        "asynchronous": fl.Asynchronous(5, 3),
        "availability": fl.Availability(clock=fl.Clock("uniform", by_examples=True)),
        "transforms": [fl.ClientPrivacy(0.5, 0.1, "local", noise_seed=7)],
        "batchnorm": False,
    },
    "feddyn": lambda: {"strategy": fl.FedDyn(0.1), "clients_per_round": 3, "momentum": 0.9},
    "fedexp": lambda: {"strategy": fl.FedExP()},
    "qfedavg": lambda: {"strategy": fl.QFedAvg(), "clients_per_round": 3},
    "afl": lambda: {"strategy": fl.AFL(1.0)},
    "fedadagrad": lambda: {"strategy": fl.FedAdagrad()},
    "ditto": lambda: {**DECAYING, **OWN_TESTS, "strategy": fl.Ditto(0.5), "clients_per_round": 3},
    "pfedme": lambda: {"strategy": fl.PFedMe(2.0, 3, 0.2, 0.5), "clients_per_round": 3, "transforms": [fl.TopK(0.5)]},
    "moon": lambda: {**KEPT, "strategy": fl.MOON("net.2", 2.0), "personal": [HEAD], "clients_per_round": 3},
    "apfl": lambda: {**DECAYING, **OWN_TESTS, "strategy": fl.APFL(0.5, 0.1), "clients_per_round": 3},
    "last client": lambda: {"strategy": fl.LastClient()},
    "own option": lambda: {
        "options": [DropNumbers(0.5)],
        "attackers": fl.Attackers(clients=[1], model=fl.ALIE(1.0)),
        "clients_per_round": 3,
    },
    "clients' parts": lambda: {
        "data": {"client_test": 0.3, "server_set": "clients", "public_share": 0.1, "feature_noise": 0.2},
        "client_evaluation": fl.ClientEvaluation(2, "val_acc", personal_epochs=1, compare_alone=True),
        "clients_per_round": 4,
        "more": 8,
    },
    "changed settings": lambda: {**KEPT, "module": Changing, "clients_per_round": 3},
    "unusual buffers": lambda: {"module": Unusual, "clients_per_round": 3},
    "k-means": lambda: {"module": Clusters, "strategy": fl.FederatedKMeans("split"), "clients_per_round": 3},
    "adaptive norm": lambda: {
        "strategy": fl.FedAvg("uniform"),
        "transforms": [fl.ClientPrivacy(0.5, 2.0, target_quantile=0.5, noise_seed=7)],
        "batchnorm": False,
    },
    "kept scores": lambda: {"strategy": fl.AdaFed("val_acc"), "server_evaluation": fl.ServerEvaluation(every_n_rounds=3)},
    "adaptive losses": lambda: {"module": Adapting, "strategy": fl.AdaFed("val_acc"), "clients_per_round": 3},
}


def prepare(name: str, sizes: Sequence[int] = SIZES, kind: Any = fl.FederatedOrchestrator) -> tuple[Plain, Any, Any]:
    """Module, data and callback of an algorithm: BatchNorm, shuffling, two local epochs, one thread; clients of these sizes."""
    chosen = ALGORITHMS[name]()
    torch.manual_seed(11)
    module = chosen.pop("module", Plain)(batchnorm=chosen.pop("batchnorm", True), momentum=chosen.pop("momentum", 0.0))
    source = chosen.pop("source", Blobs)(n=sum(SIZES) + chosen.pop("more", 0), batch_size=BATCH)
    data = (
        source.divided()
        if isinstance(source, Streams)
        else fl.FederatedDataModule(source, Consecutive(sizes), **chosen.pop("data", {}))
    )
    local = fl.LocalTraining(**{"max_epochs": 2, "threads": 1, **chosen.pop("local", {})})
    return module, data, kind(local=local, **chosen)


def outcome(module: Plain, federation: fl.FederatedOrchestrator) -> dict[str, torch.Tensor]:
    """The final weights, what was measured at the clients, and what they keep."""
    memory = federation._run.memory
    kept = {
        f"client {k}: {owner} {name}": tensor
        for k in range(len(SIZES))
        for owner, tensors in memory.kept(k).items()
        for name, tensor in tensors.items()
        if owner != "training"  # packed, with its device
    }
    return {
        **weights(module),
        **kept,
        **{f"client scores of round {r}": values for r, values in client_scores(federation).items()},
        **{f"unseen clients' scores of round {r}": values for r, values in client_scores(federation, "unseen").items()},
    }
