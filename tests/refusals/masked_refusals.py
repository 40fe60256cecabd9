"""Secure aggregation: what masks do not cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from federations import SIZES, Blobs, Plain
from refusing import Refusal, fitting

import fl_lightning as fl


def masked(strategy: Any = None, threshold: float = 0.67, **settings: Any) -> Callable[[], Any]:
    return fitting(strategy=strategy or fl.FedAvg(), secure_aggregation=fl.SecureAggregation(threshold), **settings)


class OneBroken(Blobs):
    """Client 0's inputs are not numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.train[0][: SIZES[0]] = torch.nan


class Counting(Plain):
    """Has a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


class Nothing(fl.FedAvg):
    """Weighs everyone by 0."""

    def weight(self, update: Any) -> float:
        return 0.0


class Unannounced(fl.FedAvg):
    """Adds a sum that it does not announce."""

    def accumulate(self, update: Any, sums: Any) -> Any:
        sums.add("squares", 1.0)
        return super().accumulate(update, sums)


class Silent(fl.RunningStrategy):
    """Does not say what it adds up."""

    def accumulate(self, update: Any, sums: Any) -> float:
        sums.add("state", update.state)
        return 1.0

    def aggregate(self, sums: Any) -> Any:
        return sums.take("state")


REFUSALS = [
    Refusal(masked(fl.AdaFed("val_acc")), "AdaFed weighs every client's model by its score at the server, but with"),
    Refusal(masked(fl.LastClient()), "LastClient keeps one client's model, but with 'federation.secure_aggregation'"),
    Refusal(masked(fl.FedMedian()), "FedMedian needs every client's model to combine them"),
    Refusal(masked(fl.Krum(1)), "Krum needs every client's model"),
    Refusal(masked(route=fl.FedCyclic()), "On the route FedCyclic clients pass models to each other or keep them"),
    Refusal(masked(route=fl.LocalOnly("val_acc")), "On the route LocalOnly clients pass models to each other or keep them"),
    Refusal(masked(route=fl.WarmStart(1)), "n the route WarmStart clients pass models to each other"),
    Refusal(masked(client_evaluation=fl.ClientEvaluation(1)), "'federation.client_evaluation' measures each client, but with"),
    Refusal(masked(clients_per_round=1), "'federation.clients_per_round' must be 2 clients or more with"),
    Refusal(masked(module=Counting), "The module has a buffer 'seen' of whole numbers, which cannot be added"),
    Refusal(masked(Silent()), "Silent does not say which sums it adds up, so clients cannot mask them. ... from 'sum_sizes'"),
    Refusal(masked(fl.AFL()), "AFL does not say which sums it adds up"),
    Refusal(masked(Unannounced()), "adds 1 numbers to a sum 'squares', which its 'sum_sizes' does not announce"),
    Refusal(masked(Nothing()), "Nothing gave all clients of the round the weight 0, and masks hide their", fl.ClientError),
    Refusal(
        masked(threshold=1.0, data=OneBroken(), faults=fl.Faults("skip")),
        "2 of 3 clients delivered, but removing the masks takes 3 or more. Lower",
        fl.ClientError,
    ),
]
