"""pfl-research's algorithms, run by its simulated backend with given cohorts and batches in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # before the import

from common import SERVER_OPTIMIZERS, Case, Net, Result, Run, Vector, main, network, vector
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.bridge import FrameworkBridgeFactory
from pfl.internal.bridge.pytorch.scaffold import PyTorchSCAFFOLDBridge
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

Settings = dict[str, Any]


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: Net) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Record(TrainingProcessCallback):
    def __init__(self, net: Net) -> None:
        self.net = net
        self.weights: list[Vector] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.weights.append(vector(self.net))
        return False, Metrics()


class Float64Model(PyTorchModel):
    """Takes the change of weights in float64; pfl takes it in float32."""

    def get_model_difference(self, other_parameters: Any, clone: bool = False) -> Any:
        if not clone:
            for name, variable in self.variable_map.items():
                self._model_diff[name] = torch.empty_like(variable)
        return super().get_model_difference(other_parameters, clone)


def _users(case: Case) -> FederatedDataset:
    order: Iterator[int] = iter([k for cohort in case.cohorts for k in cohort])
    return FederatedDataset(lambda k: PyTorchTensorDataset(case.examples(k), user_id=str(k)), lambda: next(order))


def federation(
    algorithm: Callable[[], Any],
    params: Callable[[Case, Settings], Any] = lambda case, rounds: NNAlgorithmParams(**rounds),
    optimizer: Callable[[Any, Settings], torch.optim.Optimizer] = lambda parameters, s: torch.optim.SGD(parameters, lr=1.0),
) -> Run:
    def run(case: Case) -> Result:
        classifier = Classifier(network(case))
        central = optimizer(classifier.parameters(), case.settings)
        model = Float64Model(classifier, torch.optim.SGD, central)
        weighting = [] if case.settings.get("weighting") == "uniform" else [WeightByDatapoints()]
        rounds = {"central_num_iterations": len(case.cohorts), "evaluation_frequency": 100, "val_cohort_size": 0}
        algorithm().run(
            algorithm_params=params(case, {**rounds, "train_cohort_size": len(case.cohorts[0])}),
            backend=SimulatedBackend(training_data=_users(case), val_data=None, postprocessors=weighting),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=case.settings["epochs"],
                local_learning_rate=case.lr,
                local_batch_size=case.settings["batch"],
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=100),
            callbacks=[record := Record(classifier.network)],
            send_metrics_to_platform=False,
        )
        return Result(record.weights)

    return run


def _controls(case: Case, rounds: Settings) -> SCAFFOLDParams:
    return SCAFFOLDParams(
        population=len(case.sizes),
        use_gradient_as_control_variate=False,
        user_state_storage=InMemoryUserStateStorage(),
        **rounds,
    )


def _opposite_sign(run: Run) -> Run:
    """pfl's controls are minus the paper's, so that they must enter a step with the opposite sign."""

    class Bridge(PyTorchSCAFFOLDBridge):
        @staticmethod
        def do_control_variate_sgd(model: Any, user_dataset: Any, train_params: Any, local_c: Any, server_c: Any) -> None:
            PyTorchSCAFFOLDBridge.do_control_variate_sgd(model, user_dataset, train_params, server_c, local_c)

    def changed(case: Case) -> Result:
        found = FrameworkBridgeFactory.scaffold_bridge
        FrameworkBridgeFactory.scaffold_bridge = staticmethod(lambda: Bridge)
        try:
            return run(case)
        finally:
            FrameworkBridgeFactory.scaffold_bridge = found

    return changed


RUNS: dict[str, Run] = {
    "FedAvg": federation(FederatedAveraging),
    **{name: federation(FederatedAveraging, optimizer=optimizer) for name, optimizer in SERVER_OPTIMIZERS.items()},
    "FedProx": federation(FedProx, lambda case, rounds: FedProxParams(mu=case.settings["proximal_mu"], **rounds)),
    "SCAFFOLD": federation(SCAFFOLD, _controls),
}
CHANGED: dict[str, Run] = {"SCAFFOLD": _opposite_sign(RUNS["SCAFFOLD"])}

if __name__ == "__main__":
    main("pfl", RUNS, CHANGED)
