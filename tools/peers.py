"""The benchmark's workloads by other packages, each in the manner of its quickstart, set for speed: a line of JSON.

    python tools/peers.py fluke S        # in the environment of tools/peers.txt

S  100 clients with 100 examples each, 10 a round, LeNet, B = 10, no evaluation.
W  AdaFed's Simulation 2: 6 clients, all in every round, Keras CNN, B = 100, one evaluation of the aggregated model on
   10,000 images per round.

E = 1, SGD with learning rate 0.01 and no momentum, cross-entropy, FedAvg weighted by examples, shuffled batches of tensors in
memory, one torch thread per process, no log, no evaluation by clients. The networks have the layers of fl_lightning's.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # before the imports of pfl and Flower
os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

LR = 0.01
NAMES = {"flower": "flwr", "pfl": "pfl", "fluke": "fluke-fl", "fedlab": "fedlab"}
"""The peers and their packages; Flower has worker processes, the others run in one."""

torch.set_num_threads(1)


class Workload:
    """What to train on, and the time at the end of each round, evaluation included.

    Args:
        name: S or W.
    """

    def __init__(self, name: str) -> None:
        sizes = {"S": (100,) * 100, "W": (190, 1710, 1780, 1230, 2040, 3160)}[name]
        generator = torch.Generator().manual_seed(0)

        def images(n: int) -> tuple[Tensor, Tensor]:
            return torch.rand(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator)

        self.name, self.clients, self.test = name, [images(n) for n in sizes], images(10_000) if name == "W" else None
        self.cohort, self.batch_size, self.rounds = (10, 10, 15) if name == "S" else (6, 100, 2)
        self.ends: list[float] = []

    def network(self) -> nn.Module:
        """Return a new network, always with the same weights."""
        torch.manual_seed(0)
        if self.name == "W":
            features = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25))
            dense = (nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
        else:
            features = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
            dense = (nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        return nn.Sequential(*features, *dense)

    def test_loader(self) -> Any:
        """Return batches of the test images, if there are any."""
        return DataLoader(TensorDataset(*self.test), batch_size=100) if self.test else None

    def end_of_round(self) -> None:
        """Take the time."""
        self.ends.append(time.process_time() if "PROCESSOR_TIME" in os.environ else time.perf_counter())

    def report(self, package: str, weights: Mapping[str, Tensor]) -> None:
        """Print the mean over all rounds but the first, which warms up, if there were so many and all weights have moved."""
        before = self.network().state_dict()
        still = [key for key in before if torch.equal(before[key], weights[key])]
        if len(self.ends) != self.rounds or still:
            raise SystemExit(f"{package} ran {len(self.ends)} rounds instead of {self.rounds}, and left {still} as they were")
        seconds = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        print(json.dumps({"version": metadata.version(package), "seconds_per_round": round(seconds, 4)}), flush=True)


def fluke(work: Workload) -> Mapping[str, Tensor]:
    """``FedAVG`` on FastDataLoaders, whose progress bars cannot be switched off; its evaluation by accuracy alone."""
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
    from fluke.evaluation import ClassificationEval
    from fluke.utils import FederationObserver, ServerObserver
    from torchmetrics import Accuracy

    class EndOfRound(FederationObserver, ServerObserver):
        def end_round(self, round: int) -> None:
            work.end_of_round()

    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    accuracy = Accuracy(task="multiclass", num_classes=10)
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=10, accuracy=accuracy))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=work.test is not None)
    local = {"batch_size": work.batch_size, "local_epochs": 1, "loss": "CrossEntropyLoss"}
    rates = {"optimizer": DDict(name="SGD", lr=LR), "scheduler": DDict(name="StepLR", step_size=1, gamma=1)}
    hyper_params = DDict(model=work.network(), client=DDict(**local, **rates), server=DDict(weighted=True))
    loader = functools.partial(FastDataLoader, num_labels=10)
    train = [loader(*client, batch_size=work.batch_size, shuffle=True) for client in work.clients]
    test = loader(*work.test, batch_size=100) if work.test else None
    data = DataSplitter(DummyDataContainer(train, [None] * len(train), test, num_classes=10))
    algorithm = FedAVG(len(work.clients), data, hyper_params)
    algorithm.set_callbacks(EndOfRound())
    algorithm.run(work.rounds, work.cohort / len(work.clients))
    weights: Mapping[str, Tensor] = algorithm.server.model.state_dict()
    return weights


def pfl(work: Workload) -> Mapping[str, Tensor]:
    """``FederatedAveraging`` on a SimulatedBackend; a user's examples are shuffled when it is drawn."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = work.network()

        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            self.train()
            return F.cross_entropy(self.network(images), labels)

        @torch.no_grad()
        def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
            self.eval()
            return {"accuracy": Weighted(int((self.network(images).argmax(1) == labels).sum()), len(labels))}

    class EndOfRound(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            work.end_of_round()
            return False, Metrics()

    def user(number: int) -> Any:
        images, labels = work.clients[number]
        order = torch.randperm(len(labels))
        return PyTorchTensorDataset((images[order], labels[order]))

    classifier = Classifier()
    central = torch.optim.SGD(classifier.parameters(), lr=1.0)
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(len(work.clients)))))
    evaluated = NNEvalHyperParams(local_batch_size=100)
    rounds = {
        "central_num_iterations": work.rounds,
        "evaluation_frequency": work.rounds + 1,
    }  # no evaluation on users after the first
    local = {"local_num_epochs": 1, "local_learning_rate": LR, "local_batch_size": work.batch_size}
    test = [CentralEvaluationCallback(PyTorchTensorDataset(work.test), evaluated)] if work.test else []
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(train_cohort_size=work.cohort, val_cohort_size=0, **rounds),
        backend=SimulatedBackend(training_data=users, val_data=None, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(model=classifier, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(**local),
        model_eval_params=evaluated,
        callbacks=[*test, EndOfRound()],
        send_metrics_to_platform=False,
    )
    return classifier.network.state_dict()


def fedlab(work: Workload) -> Mapping[str, Tensor]:
    """A StandalonePipeline; as its own algorithms do, trainer and handler are subclassed to weigh by examples."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils.aggregator import Aggregators
    from fedlab.utils.functional import evaluate

    class Clients(FedDataset):
        def __init__(self) -> None:
            self.num, self.datasets = len(work.clients), [TensorDataset(*client) for client in work.clients]

        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Any:
            return DataLoader(self.datasets[id], batch_size=batch_size, shuffle=True)

    class Trainer(SGDSerialClientTrainer):
        def train(self, model_parameters: Tensor, train_loader: Any) -> list[Tensor]:
            return [*super().train(model_parameters, train_loader), torch.tensor(float(len(train_loader.dataset)))]

    class Handler(SyncServerHandler):
        def global_update(self, buffer: list[list[Tensor]]) -> None:
            parameters, examples = zip(*buffer, strict=True)
            self.set_model(Aggregators.fedavg_aggregate(list(parameters), torch.stack(examples)))

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            if test is not None:
                evaluate(self.handler.model, nn.CrossEntropyLoss(), test)
            work.end_of_round()

    network, test = work.network(), work.test_loader()
    trainer = Trainer(network, len(work.clients))
    trainer.setup_dataset(Clients())
    trainer.setup_optim(epochs=1, batch_size=work.batch_size, lr=LR)
    handler = Handler(network, global_round=work.rounds, sample_ratio=work.cohort / len(work.clients))
    Pipeline(handler, trainer).main()
    weights: Mapping[str, Tensor] = handler.model.state_dict()
    return weights


@functools.lru_cache
def resident(name: str) -> tuple[Workload, nn.Module]:
    """Return the workload and the network that a worker process of Flower uses again and again."""
    work = Workload(name)
    return work, work.network()


def train_flower(message: Any, context: Any) -> Any:
    """Train one epoch of one client in a worker process of Flower."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    work, network = resident(str(message.content["config"]["workload"]))
    images, labels = work.clients[int(context.node_config["partition-id"])]
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    for x, y in DataLoader(TensorDataset(images, labels), batch_size=work.batch_size, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


def flower(work: Workload, workers: int) -> Mapping[str, Tensor]:
    """A ClientApp and a ServerApp by ``run_simulation`` on Ray, which needs no project folder."""
    import peers  # so that workers import the client's code; that of __main__ would be sent with every message
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, results = ClientApp(), ServerApp(), []
    client_app.train()(peers.train_flower)
    network, loader = work.network(), work.test_loader()

    def end_of_round(server_round: int, arrays: Any) -> Any:
        metrics = None
        if server_round and work.test:  # Flower also calls it before the first round
            network.load_state_dict(arrays.to_torch_state_dict())
            network.eval()
            with torch.inference_mode():
                hits = sum(int((network(x).argmax(1) == y).sum()) for x, y in loader)
            metrics = MetricRecord({"accuracy": hits / len(work.test[1])})
        if server_round:
            work.end_of_round()
        return metrics

    @server_app.main()
    def serve(grid: Any, context: Any) -> None:
        share, everyone = work.cohort / len(work.clients), len(work.clients)
        strategy = FedAvg(share, 0.0, min_train_nodes=work.cohort, min_available_nodes=everyone)
        start, config = ArrayRecord(work.network().state_dict()), ConfigRecord({"workload": work.name})
        settings: Any = {"num_rounds": work.rounds, "train_config": config, "evaluate_fn": end_of_round}
        results.append(strategy.start(grid=grid, initial_arrays=start, **settings))

    logging.getLogger("flwr").setLevel(logging.ERROR)
    quiet = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
    backend = {"init_args": quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=len(work.clients), backend_config=backend)
    weights: Mapping[str, Tensor] = results[0].arrays.to_torch_state_dict()
    return weights


def main() -> None:
    """Run one peer on one workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(NAMES))
    parser.add_argument("workload", choices=["S", "W"])
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="of flower: a process each; all cores unless told")
    args = parser.parse_args()
    work = Workload(args.workload)
    given = (args.workers,) if args.peer == "flower" else ()
    work.report(NAMES[args.peer], globals()[args.peer](work, *given))


if __name__ == "__main__":
    main()
