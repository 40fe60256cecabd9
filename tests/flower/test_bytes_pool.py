"""The seam between server and clients: in other processes, and over bytes alone, a federation has the same bits."""

from __future__ import annotations

from typing import Any

import bytes_pool
import pytest
import torch
from bytes_pool import RemoteOrchestrator, Workers
from federations import SIZES, Blobs, Consecutive, Plain, network, same_bits, trainer, weights
from lightning.pytorch import Callback

from fl_lightning import (
    AFL,
    APFL,
    MOON,
    AdaFed,
    Asynchronous,
    ClassificationTask,
    ClientEvaluation,
    Clock,
    Ditto,
    F1WeightedCrossEntropy,
    Faults,
    FedAvg,
    FedBuff,
    FedCyclic,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FedExP,
    FedLoss,
    FedNova,
    FedRep,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
    Mediators,
    PersonalPart,
    PFedMe,
    QFedAvg,
    Quantize,
    RingFed,
    Scaffold,
    TopK,
)


def adaptive() -> Any:
    torch.manual_seed(4)

    return ClassificationTask(network(batchnorm=True), 3, F1WeightedCrossEntropy(3))


def plain() -> Plain:
    torch.manual_seed(4)
    return Plain(batchnorm=True)


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, float]]] = {
    "FedAvg": (plain, {"strategy": FedAvg}, {}),
    "AdaFed with its loss": (adaptive, {"strategy": lambda: AdaFed("val_accuracy")}, {}),
    "FedNova": (plain, {"strategy": FedNova}, {}),
    "SCAFFOLD": (plain, {"strategy": Scaffold, "clients_per_round": lambda: 2}, {}),
    "FedProx": (plain, {"local": lambda: LocalTraining(proximal_mu=0.3, max_epochs=2)}, {}),
    "Fed-Cyclic": (plain, {"route": FedCyclic}, {}),
    "RingFed": (plain, {"route": lambda: RingFed(2)}, {}),
    "LocalOnly": (plain, {"route": lambda: LocalOnly("val_acc")}, {}),
    "FedLoss": (plain, {"strategy": lambda: FedLoss("val_loss")}, {"client_validation": 0.3}),
    "personal": (
        plain,
        {
            "personal": lambda: [PersonalPart(modules="torch.nn.BatchNorm1d"), PersonalPart(names="net.3.*")],
            "client_evaluation": lambda: ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True),
        },
        {"client_test": 0.3},
    ),
    "FedRep": (plain, {"strategy": FedRep, "personal": lambda: [PersonalPart(names="net.3.*")]}, {}),
    "FedDyn": (plain, {"strategy": FedDyn, "clients_per_round": lambda: 2}, {}),
    "q-FedAvg": (plain, {"strategy": QFedAvg}, {}),
    "AFL": (plain, {"strategy": lambda: AFL(1.0)}, {}),
    "FedExP": (plain, {"strategy": FedExP}, {}),
    "FedBuff": (
        plain,
        {
            "strategy": FedBuff,
            "asynchronous": lambda: Asynchronous(3, 1),
            "clock": lambda: Clock("lognormal"),
            "transforms": lambda: [TopK(0.5)],
            "personal": lambda: [PersonalPart(names="net.3.*")],
        },
        {},
    ),
    "Ditto": (
        plain,
        {"strategy": Ditto, "client_evaluation": lambda: ClientEvaluation(1, "val_acc"), "clients_per_round": lambda: 2},
        {"client_test": 0.3},
    ),
    "pFedMe": (plain, {"strategy": lambda: PFedMe(2.0, 3, 0.2)}, {}),
    "MOON": (plain, {"strategy": lambda: MOON("net.2"), "clients_per_round": lambda: 2}, {}),
    "APFL": (
        plain,
        {"strategy": lambda: APFL(0.5, 0.1), "client_evaluation": lambda: ClientEvaluation(1, "val_acc")},
        {"client_test": 0.3},
    ),
    "compressed": (plain, {"transforms": lambda: [TopK(0.3), Quantize(4)]}, {}),
    "client evaluation": (
        plain,
        {"client_evaluation": lambda: ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True)},
        {"client_test": 0.3},
    ),
}


def settings_of(case: str) -> dict[str, Any]:
    made = {name: make() for name, make in CASES[case][1].items()}
    return {"local": LocalTraining(max_epochs=2), **made}


def workers_of(case: str) -> Workers:
    data = FederatedDataModule(Blobs(), Consecutive(), **CASES[case][2])
    return bytes_pool.workers_of(lambda: (CASES[case][0](), FederatedOrchestrator(**settings_of(case))), data, SIZES)


class Log(FederationCallback):
    """What the server knows of each client's update."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_aggregated(self, trainer, pl_module, updates) -> None:
        for u in updates:
            figures = (u.client, u.num_examples, u.num_steps, u.train_loss, dict(u.metrics), u.bytes_up, u.bytes_down)
            self.seen.append((*figures, u.score, u.local_score, u.weight, u.update_norm, u.optimizer))


def run(case: str, federation: FederatedOrchestrator, rounds: int, *callbacks: Callback, **more: Any) -> Any:
    ckpt_path = more.pop("ckpt_path", None)
    module, log = CASES[case][0](), Log()
    fit = trainer(rounds, federation, log, *callbacks, **more)
    fit.fit(module, FederatedDataModule(Blobs(), Consecutive(), **CASES[case][2]), ckpt_path=ckpt_path)
    return module, log, fit


@pytest.mark.parametrize("case", CASES)
def test_clients_elsewhere_give_the_same_bits(case, tmp_path):
    here, told, fit = run(case, FederatedOrchestrator(**settings_of(case)), 2, default_root_dir=tmp_path / "here")
    workers = workers_of(case)
    try:
        federation = RemoteOrchestrator(**settings_of(case))
        federation.workers = workers
        there, heard, remote = run(case, federation, 2, default_root_dir=tmp_path / "there")
    finally:
        workers.close()
    assert same_bits(weights(here), weights(there))
    assert told.seen == heard.seen
    mine = {name: float(value) for name, value in fit.callback_metrics.items() if "seconds" not in name}
    assert mine == {name: float(value) for name, value in remote.callback_metrics.items() if name in mine}
    assert federation.clients_pool.received > 2 * 4 * 67
    if "client_evaluation" in CASES[case][1]:
        names = {path.name for path in (tmp_path / "here").glob("client_*.csv")}
        assert "client_evaluation.csv" in names
        for name in names:
            assert (tmp_path / "here" / name).read_text() == (tmp_path / "there" / name).read_text()


class Crash(Callback):
    """The server dies after a round's training, before its checkpoint."""

    def on_validation_start(self, trainer, pl_module) -> None:
        if trainer.current_epoch == 2 and not trainer.sanity_checking:
            raise SystemExit("killed")


def test_a_server_that_dies_before_its_checkpoint_repeats_the_round(tmp_path):
    """SCAFFOLD: the clients have changed their c_k in the round that is lost, and must not change it twice."""
    case = "SCAFFOLD"
    whole, _, _ = run(case, FederatedOrchestrator(**settings_of(case)), 5)
    workers = workers_of(case)
    saving = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    try:
        federation = RemoteOrchestrator(**settings_of(case))
        federation.workers = workers
        with pytest.raises(SystemExit):
            run(case, federation, 5, LastCheckpoint(), Crash(), **saving)
        again = RemoteOrchestrator(**settings_of(case))
        again.workers = workers
        module, _, fit = run(case, again, 5, LastCheckpoint(), ckpt_path="last", **saving)
    finally:
        workers.close()
    assert fit.current_epoch == 5
    assert same_bits(weights(whole), weights(module))


def test_a_round_that_no_client_remembers_cannot_be_repeated(tmp_path):
    """The server goes back three rounds, its clients keep one."""
    case = "SCAFFOLD"
    workers = workers_of(case)
    saving = {"enable_checkpointing": True, "default_root_dir": tmp_path}

    class Copy(Callback):
        def on_train_epoch_start(self, trainer, pl_module) -> None:
            if trainer.current_epoch == 2:
                trainer.save_checkpoint(tmp_path / "early.ckpt")

    try:
        federation = RemoteOrchestrator(**settings_of(case))
        federation.workers = workers
        run(case, federation, 5, LastCheckpoint(), Copy(), **saving)
        again = RemoteOrchestrator(**settings_of(case))
        again.workers = workers
        with pytest.raises(Exception, match=r"restarts at round \d, but this client only has the state for round \d"):
            run(case, again, 5, ckpt_path=str(tmp_path / "early.ckpt"), default_root_dir=tmp_path / "other")
    finally:
        workers.close()


class Breaks(Plain):
    """Client 1's data break it: it is the one with 20 examples."""

    def on_train_start(self) -> None:
        if self.trainer.num_training_batches == 4:
            raise OSError("a broken disk")


def test_a_failure_elsewhere_is_one_clients_own():
    CASES["breaks"] = (Breaks, {"faults": lambda: Faults("skip", retries=1)}, {})
    workers = workers_of("breaks")
    try:
        federation = RemoteOrchestrator(**settings_of("breaks"))
        federation.workers = workers
        with pytest.warns(UserWarning, match="without client 1 after 2 attempts: OSError: a broken disk"):
            _, log, _ = run("breaks", federation, 1)
    finally:
        workers.close()
        del CASES["breaks"]
    assert [seen[0] for seen in log.seen] == [0, 2]


def test_chains_over_several_sites():
    CASES["chains"] = (plain, {"route": lambda: Mediators(2)}, {})
    try:
        here, _, _ = run("chains", FederatedOrchestrator(**settings_of("chains")), 2)
        workers = workers_of("chains")
        try:
            federation = RemoteOrchestrator(**settings_of("chains"))
            federation.workers = workers
            there, _, _ = run("chains", federation, 2)
        finally:
            workers.close()
    finally:
        del CASES["chains"]
    assert same_bits(weights(here), weights(there))
