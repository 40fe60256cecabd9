"""pfl-research: FederatedAveraging of a PyTorchModel on a SimulatedBackend, in one process.

In the manner of pfl's PyTorch API: a module with ``loss`` and ``metrics``, a federated dataset of user datasets,
``WeightByDatapoints`` as postprocessor (without it pfl weights users equally), a central SGD with learning rate 1, the
evaluation by ``CentralEvaluationCallback``. A ``FederatedDataset`` is used instead of ``ArtificialFederatedDataset``
since the clients here are fixed; its sampler walks through them in turn, so that W has every client once a round. pfl
slices a user's tensors into batches without shuffling; they are shuffled when the user is drawn, so that all peers do
the same work. Chosen for speed: tensors in memory, no evaluation on the users (evaluation_frequency beyond the end; the
first round has it and is not timed), no metrics sent to the platform, no mixed precision, no torch.compile.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import workload
from torch import Tensor, nn
from torch.nn import functional as F

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # before the import

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
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.network(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        self.eval()
        hits = int((self.network(images).argmax(1) == labels).sum())
        return {"accuracy": Weighted(hits, len(labels))}


class EndOfRound(TrainingProcessCallback):
    def __init__(self, clock: workload.Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.end_of_round()
        return False, Metrics()


def user_dataset(work: workload.Workload, user: int, clock: workload.Clock) -> PyTorchTensorDataset:
    images, labels = work.clients[user]
    clock.examples += len(labels)
    order = torch.randperm(len(labels))
    return PyTorchTensorDataset((images[order], labels[order]))


def run(work: workload.Workload, rounds: int) -> None:
    clock = workload.Clock()
    classifier = Classifier(work.network())
    model = PyTorchModel(
        model=classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("minimize_reuse", list(range(len(work.clients))))
    users = FederatedDataset(lambda user: user_dataset(work, user, clock), sampler)
    backend = SimulatedBackend(training_data=users, val_data=None, postprocessors=[WeightByDatapoints()])
    eval_params = NNEvalHyperParams(local_batch_size=work.test_batch_size)
    callbacks: list[TrainingProcessCallback] = [EndOfRound(clock)]
    if work.test:
        callbacks.insert(0, CentralEvaluationCallback(PyTorchTensorDataset(work.test), eval_params))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        model_eval_params=eval_params,
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )
    workload.report("pfl", "pfl", work, rounds, clock, classifier.network.state_dict())


if __name__ == "__main__":
    args = workload.arguments(__doc__).parse_args()
    run(workload.load(args.workload), args.rounds or workload.load(args.workload).rounds)
