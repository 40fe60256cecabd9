"""NVFlare's aggregation, FedOpt, FedBuff, and its helpers for clients (FedProx's loss, SCAFFOLD), without its runtime."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import SERVER_OPTIMIZERS, Case, Result, Run, Vector, load, local_sgd, main, network, server_rounds, sgd, vector
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.scaffold import scaffold_aggregate_fn
from nvflare.app_opt.pt.fedopt import PTFedOptModelShareableGenerator
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper
from nvflare.edge.assessors.buff_model_manager import BuffModelManager
from nvflare.edge.mud import ModelUpdate


def reply(model: Vector, weight: float | None, **meta: Any) -> FLModel:
    """What a client sends; NVFlare weighs it by the steps that it reports."""
    steps = {} if weight is None else {FLMetaKey.NUM_STEPS_CURRENT_ROUND: weight}
    return FLModel(ParamsType.FULL, {"weights": model}, meta={**steps, **meta}, current_round=0)


def averaging(by: Callable[[Case, int], float | None], train: Callable[[Case, int, Vector], Vector] = local_sgd) -> Run:
    def run(case: Case) -> Result:
        def step(w: Vector, cohort: Sequence[int], models: list[Vector]) -> Vector:
            replies = [reply(model, by(case, k)) for k, model in zip(cohort, models, strict=True)]
            return BaseFedAvg.aggregate_fn(replies).params["weights"]

        return server_rounds(case, step, train)

    return run


def steps_of(case: Case, client: int) -> float:
    return len(case.batches(client))


def proximal(case: Case, client: int, start: Vector) -> Vector:
    net, anchor, term = network(case), network(case), PTFedProxLoss(case.settings["proximal_mu"])
    load(net, start)
    load(anchor, start)
    sgd(case, client, net, lambda net: term(net, anchor))
    return vector(net)


def scaffold(by: Callable[[Case, int], float | None], factor: Callable[[Case], float] = lambda case: 1.0) -> Run:
    """The controller's loop over its own functions; ``factor`` scales the change of c."""

    def run(case: Case) -> Result:
        net, weights, w = network(case), [], case.initial
        names = [name for name, _ in net.named_parameters()]
        control = {name: np.zeros_like(tensor.detach().numpy()) for name, tensor in net.named_parameters()}
        helpers: dict[int, tuple[Any, PTScaffoldHelper]] = {}
        for cohort in case.cohorts:
            replies = []
            for k in cohort:
                if k not in helpers:
                    helpers[k] = (network(case), PTScaffoldHelper())
                    helpers[k][1].init(helpers[k][0])
                model, helper = helpers[k]
                load(model, w)
                change = _turn(case, k, model, helper, control)
                replies.append(reply(vector(model), by(case, k), **{AlgorithmConstants.SCAFFOLD_CTRL_DIFF: change}))
            result = scaffold_aggregate_fn(replies)
            weights.append(w := result.params["weights"])
            change = result.meta[AlgorithmConstants.SCAFFOLD_CTRL_DIFF]
            control = {name: control[name] + factor(case) * change[name] for name in names}
        return Result(weights)

    return run


def _turn(case: Case, client: int, model: Any, helper: PTScaffoldHelper, control: dict[str, Any]) -> dict[str, Any]:
    """A client's turn, in the manner of NVFlare's example."""
    start = copy.deepcopy(model)
    helper.load_global_controls(control)
    shared, own = helper.get_params()
    sgd(case, client, model, then=lambda model: helper.model_update(model, case.lr, shared, own))
    helper.terms_update(model, case.lr, shared, own, start)
    return helper.get_delta_controls()


def adaptive(optimizer: Callable[[Any, dict[str, Any]], torch.optim.Optimizer]) -> Run:
    """FedOpt's generator, which takes any optimizer of torch."""

    def run(case: Case) -> Result:
        generator = PTFedOptModelShareableGenerator(device="cpu")
        generator.model, generator.device = network(case), torch.device("cpu")
        generator.optimizer = optimizer(generator.model.parameters(), case.settings)

        def step(w: Vector, cohort: Sequence[int], models: list[Vector]) -> Vector:
            average = network(case)
            load(average, case.mean(cohort, models) - w)
            change = {name: tensor.detach().numpy() for name, tensor in average.named_parameters()}
            generator.server_update(change)
            return vector(generator.model)

        return server_rounds(case, step)

    return run


class PaperBuffer(BuffModelManager):
    """s = 1 / sqrt(1 + staleness), where the staleness of an update of the current model is 0."""

    def generate_new_model(self, fl_ctx: FLContext) -> None:
        current = self.current_model_version
        for version, state in self.updates.items():
            if current and state.aggregator.count:
                late = current - version  # NVFlare's weight of it is 1 / (1 + sqrt(late + 1))
                scale = (1 + late) ** -0.5 * (1 + (late + 1) ** 0.5)
                state.aggregator.dict = {key: scale * value for key, value in state.aggregator.dict.items()}
        super().generate_new_model(fl_ctx)


def buffered(kind: Any) -> Run:
    def run(case: Case) -> Result:
        s, context = case.settings, FLContext()
        manager = kind(s["buffer"], global_lr=s["server_lr"], staleness_weight=True)
        with mock.patch.object(kind, "fire_event"), mock.patch.object(kind, "log_info"):
            manager.initialize_model(DXO(DataKind.WEIGHTS, {"weights": case.initial}), context)
            manager.generate_new_model(context)  # version 1 is the initial model
            models = [case.initial]
            for cohort, staleness in zip(case.cohorts, case.staleness, strict=True):
                for k, late in zip(cohort, staleness, strict=True):
                    start = models[len(models) - 1 - late]
                    content = {"dict": {"weights": local_sgd(case, k, start) - start}, "count": 1}
                    update = DXO(DataKind.WEIGHT_DIFF, content).to_shareable()
                    version = len(models) - late
                    manager.process_updates({version: ModelUpdate(version, update, {f"{k}": 0.0})}, context)
                models.append(np.array(manager.current_model.data["weights"]))
        return Result(models[1:])

    return run


RUNS: dict[str, Run] = {
    "FedAvg": averaging(steps_of),
    "FedProx": averaging(lambda case, k: None, proximal),
    "SCAFFOLD": scaffold(steps_of),
    **{name: adaptive(SERVER_OPTIMIZERS[name]) for name in ("FedAdam", "FedAdagrad")},
    "FedBuff": buffered(BuffModelManager),
}
CHANGED: dict[str, Run] = {
    "FedAvg": averaging(lambda case, k: case.sizes[k]),
    "SCAFFOLD": scaffold(lambda case, k: None, lambda case: len(case.cohorts[0]) / len(case.sizes)),
    "FedBuff": buffered(PaperBuffer),
}

if __name__ == "__main__":
    main("nvflare", RUNS, CHANGED)
