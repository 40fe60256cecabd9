"""Flower's strategies (``flwr.serverapp.strategy``), on FedAvg's clients; a grid that only lists nodes stands in for sites."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from common import Case, Result, Run, Vector, as_torch_adam, load, main, network, server_rounds
from flwr.common import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity
from torch.nn import functional as F


class Nodes:
    """As many nodes as the cohort has clients."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def record(weights: Vector) -> ArrayRecord:
    return ArrayRecord({"weights": Array(np.ascontiguousarray(weights))})


def loss_of(case: Case, w: Vector, client: int) -> float:
    net = network(case)
    load(net, w)
    x, y = case.examples(client)
    with torch.no_grad():
        return float(F.cross_entropy(net(x), y))


def rule(make: Callable[[dict[str, Any]], Any]) -> Run:
    def run(case: Case) -> Result:
        strategy, number = make(case.settings), 0

        def reply(w: Vector, client: int, model: Vector) -> Message:
            metrics = {"num-examples": case.sizes[client], "equal": 1, "train_loss": loss_of(case, w, client)}
            content = RecordDict({"arrays": record(model), "metrics": MetricRecord(metrics)})
            return Message(content, dst_node_id=client + 1, message_type="train")

        def step(w: Vector, cohort: Sequence[int], models: list[Vector]) -> Vector:
            nonlocal number
            number += 1  # Flower counts rounds from 1
            list(strategy.configure_train(number, record(w), ConfigRecord(), Nodes(len(cohort))))
            replies = [reply(w, client, model) for client, model in zip(cohort, models, strict=True)]
            arrays, _ = strategy.aggregate_train(number, replies)
            return arrays["weights"].numpy()

        return server_rounds(case, step)

    return run


def _rates(s: dict[str, Any], *names: str) -> dict[str, float]:
    return {"eta": s["server_lr"], "tau": s["tau"], **{name: s[name] for name in names}}


def from_tau(kind: Any) -> Any:
    """The strategy with v from tau^2 instead of 0."""

    class Changed(kind):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if not self.v_t:
                self.v_t = {key: np.full_like(array, self.tau**2) for key, array in self.current_arrays.items()}
            return super().aggregate_train(server_round, replies)

    return Changed


class TorchAdam(flower.FedAdam):
    """The bias of round t is corrected with t, not with t + 1, and tau is added to the corrected root, as torch does."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        settings = {"server_lr": self.eta, "beta_1": self.beta_1, "beta_2": self.beta_2, "tau": self.tau}
        self.tau, tau = as_torch_adam(settings, server_round)[1], self.tau
        result = super().aggregate_train(server_round - 1, replies)
        self.tau = tau
        return result


RUNS = {
    "FedAvg": rule(lambda s: flower.FedAvg()),
    "FedAvgM": rule(lambda s: flower.FedAvgM(server_learning_rate=s["server_lr"], server_momentum=s["momentum"])),
    "FedAdam": rule(lambda s: flower.FedAdam(**_rates(s, "beta_1", "beta_2"))),
    "FedAdagrad": rule(lambda s: flower.FedAdagrad(**_rates(s))),
    "FedYogi": rule(lambda s: flower.FedYogi(**_rates(s, "beta_1", "beta_2"))),
    "q-FedAvg": rule(lambda s: flower.QFedAvg(client_learning_rate=s["lr"], q=s["q"])),
    "Krum": rule(lambda s: flower.Krum(num_malicious_nodes=s["attackers"])),
    "multi-Krum": rule(lambda s: flower.MultiKrum(num_malicious_nodes=s["attackers"], num_nodes_to_select=s["selected"])),
    "trimmed mean": rule(lambda s: flower.FedTrimmedAvg(beta=0.2)),  # one of five
    "median": rule(lambda s: flower.FedMedian()),
}
CHANGED = {
    "FedAdam": rule(lambda s: TorchAdam(**_rates(s, "beta_1", "beta_2"))),
    "FedAdagrad": rule(lambda s: from_tau(flower.FedAdagrad)(**_rates(s))),
    "FedYogi": rule(lambda s: from_tau(flower.FedYogi)(**_rates(s, "beta_1", "beta_2"))),
    "multi-Krum": rule(
        lambda s: flower.MultiKrum(
            num_malicious_nodes=s["attackers"], num_nodes_to_select=s["selected"], weighted_by_key="equal"
        )
    ),
}

if __name__ == "__main__":
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a message cannot be made without
    logging.getLogger("flwr").setLevel(logging.ERROR)
    main("flwr", RUNS, CHANGED)
