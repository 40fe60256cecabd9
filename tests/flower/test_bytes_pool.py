"""The seam between server and clients: what the server knows of clients in other processes is what it knows of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bytes_pool
import pytest
import torch
from bytes_pool import RemoteOrchestrator
from federations import SIZES, Blobs, Consecutive, Plain, same_bits, trainer, weights

from fl_lightning import (
    ClientEvaluation,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    LocalTraining,
    PersonalPart,
)


def plain() -> Plain:
    torch.manual_seed(4)
    return Plain(batchnorm=True)


class Log(FederationCallback):
    """What the server knows of each client's update."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_aggregated(self, trainer: Any, pl_module: Any, updates: Any) -> None:
        for u in updates:
            figures = (u.client, u.num_examples, u.num_steps, u.train_loss, dict(u.metrics), u.bytes_up, u.bytes_down)
            self.seen.append((*figures, u.score, u.local_score, u.weight, u.update_norm, u.optimizer))


def data_of(module: Any) -> FederatedDataModule:
    return FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)


def run(federation: FederatedOrchestrator, folder: str, module: Any = plain) -> tuple[Any, Log, Any]:
    found, log = module(), Log()
    fit = trainer(2, federation, log, default_root_dir=folder)
    fit.fit(found, data_of(module))
    return found, log, fit


def remote(module: Any = plain, **settings: Any) -> RemoteOrchestrator:
    """Start the clients, each in a process with its own examples."""
    make = lambda: (module(), FederatedOrchestrator(**settings))  # noqa: E731
    federation = RemoteOrchestrator(**settings)
    federation.workers = bytes_pool.workers_of(make, data_of(module), SIZES)
    return federation


@pytest.mark.slow
def test_clients_elsewhere_are_known_as_well_as_those_here():
    """Their figures, metrics and evaluations; the bits of every algorithm are in the matrix."""
    settings: dict[str, Any] = {
        "personal": [PersonalPart(modules="torch.nn.BatchNorm1d"), PersonalPart(names="net.3.*")],
        "client_evaluation": ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True),
        "local": LocalTraining(max_epochs=2),
    }
    here, told, fit = run(FederatedOrchestrator(**settings), "here")
    federation = remote(**settings)
    try:
        there, heard, elsewhere = run(federation, "there")
    finally:
        federation.workers.close()
    assert same_bits(weights(here), weights(there))
    assert told.seen == heard.seen
    mine = {name: float(value) for name, value in fit.callback_metrics.items() if "seconds" not in name}
    assert mine == {name: float(value) for name, value in elsewhere.callback_metrics.items() if name in mine}
    assert federation.clients_pool.received > 2 * 4 * 67
    names = {path.name for path in Path("here").glob("client_*.csv")}
    assert "client_evaluation.csv" in names
    for name in names:
        assert Path("here", name).read_text() == Path("there", name).read_text()
