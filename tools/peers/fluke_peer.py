"""fluke: its FedAVG class, run from Python, in one process.

In the manner of fluke's quickstart: ``FlukeENV`` for the settings, a ``DataSplitter`` over the clients' ``FastDataLoader``s
(a ``DummyDataContainer``, fluke's container for clients that are given), a dictionary of hyper-parameters, ``run``.
Chosen for speed: FastDataLoader's slices of tensors in memory, models kept in memory, the evaluation of the server's
model by accuracy alone instead of fluke's seven metrics, or none at all (S), no evaluation by clients, no log. The
server averages with weighted=True (fluke's default is equal weights). Clients keep their model and optimizer between
rounds, as is fluke's default. Its progress bars cannot be switched off. Time is taken at fluke's "end_round" event;
the finalisation (a broadcast and one more evaluation), which fluke runs after the last round, is not in it.
"""

from __future__ import annotations

from collections.abc import Collection

import workload
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver
from torchmetrics import Accuracy


class EndOfRound(FederationObserver, ServerObserver):
    def __init__(self, clock: workload.Clock) -> None:
        self.clock = clock

    def selected_clients(self, round: int, clients: Collection[Client]) -> None:
        self.clock.examples += sum(client.n_examples for client in clients)

    def end_round(self, round: int) -> None:
        self.clock.end_of_round()


def splitter(work: workload.Workload) -> DataSplitter:
    train = [
        FastDataLoader(images, labels, num_labels=10, batch_size=work.batch_size, shuffle=True)
        for images, labels in work.clients
    ]
    test = FastDataLoader(*work.test, num_labels=10, batch_size=work.test_batch_size) if work.test else None
    return DataSplitter(DummyDataContainer(train, [None] * len(train), test, num_classes=10))


def run(work: workload.Workload, rounds: int) -> None:
    clock = workload.Clock()
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_evaluator(
        ClassificationEval(eval_every=1, n_classes=10, accuracy=Accuracy(task="multiclass", num_classes=10))
    )
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=work.test is not None)
    network = work.network()
    hyper_params = DDict(
        model=network,
        client=DDict(
            batch_size=work.batch_size,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    algorithm = FedAVG(len(work.clients), splitter(work), hyper_params)
    algorithm.set_callbacks(EndOfRound(clock))
    algorithm.run(rounds, work.cohort / len(work.clients))
    workload.report("fluke", "fluke-fl", work, rounds, clock, algorithm.server.model.state_dict())


if __name__ == "__main__":
    args = workload.arguments(__doc__).parse_args()
    run(workload.load(args.workload), args.rounds or workload.load(args.workload).rounds)
