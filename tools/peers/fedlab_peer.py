"""FedLab: a StandalonePipeline of a SyncServerHandler and an SGDSerialClientTrainer, in one process.

In the manner of FedLab's standalone pipeline: a ``FedDataset`` that hands out a DataLoader for each client, the serial trainer,
the handler, a pipeline whose ``evaluate`` is called after every round and calls ``fedlab.utils.functional.evaluate``.
Chosen for speed: TensorDatasets in memory (FedLab's own datasets read each client's from disk at every call), no log.
FedLab's handler averages with equal weights; as its own algorithms do, trainer and handler are subclassed to send the
number of examples along and to pass it to FedLab's ``fedavg_aggregate``.
"""

from __future__ import annotations

import torch
import workload
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.aggregator import Aggregators
from fedlab.utils.functional import evaluate
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Clients(FedDataset):
    """The clients' examples, in memory."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.num = len(clients)
        self.datasets = [TensorDataset(*client) for client in clients]

    def get_dataset(self, id: int, type: str = "train") -> TensorDataset:
        return self.datasets[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(self.datasets[id], batch_size=batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):
    """Sends the number of examples after the parameters."""

    clock: workload.Clock

    def train(self, model_parameters: Tensor, train_loader: DataLoader) -> list[Tensor]:
        self.clock.examples += len(train_loader.dataset)
        return [*super().train(model_parameters, train_loader), torch.tensor(float(len(train_loader.dataset)))]


class Handler(SyncServerHandler):
    """Weights by the number of examples."""

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        parameters, examples = zip(*buffer, strict=True)
        self.set_model(Aggregators.fedavg_aggregate(list(parameters), torch.stack(examples)))


class Pipeline(StandalonePipeline):
    def __init__(self, handler: Handler, trainer: Trainer, test: DataLoader | None, clock: workload.Clock) -> None:
        super().__init__(handler, trainer)
        self.test = test
        self.clock = clock

    def evaluate(self) -> None:
        if self.test is not None:
            evaluate(self.handler.model, nn.CrossEntropyLoss(), self.test)
        self.clock.end_of_round()


def run(work: workload.Workload, rounds: int) -> None:
    clock = workload.Clock()
    network = work.network()
    trainer = Trainer(network, len(work.clients))
    trainer.clock = clock
    trainer.setup_dataset(Clients(work.clients))
    trainer.setup_optim(epochs=1, batch_size=work.batch_size, lr=work.lr)
    handler = Handler(network, global_round=rounds, sample_ratio=work.cohort / len(work.clients))
    test = DataLoader(TensorDataset(*work.test), batch_size=work.test_batch_size) if work.test else None
    Pipeline(handler, trainer, test, clock).main()
    workload.report("fedlab", "fedlab", work, rounds, clock, handler.model.state_dict())


if __name__ == "__main__":
    args = workload.arguments(__doc__).parse_args()
    run(workload.load(args.workload), args.rounds or workload.load(args.workload).rounds)
