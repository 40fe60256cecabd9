"""One interface for whatever a loss adapts to: a metric of (outputs, target), or a figure that the module logs."""

import re
from typing import Any

import pytest
import torch
from adaptive import Calls, Own, Tempered
from command_line import ROOT
from federations import Blobs, Plain, federate, trainer
from lightning.pytorch.loggers import CSVLogger
from shared_runs import rows_of
from sklearn.metrics import f1_score, recall_score
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

from fl_lightning import (
    ClassificationTask,
    F1WeightedCrossEntropy,
    LossAdaptation,
    MetricWeightedCrossEntropy,
    ProximalLoss,
)
from fl_lightning.data import TensorLoader


@pytest.mark.parametrize("enabled", [True, False])
def test_a_logged_figure_as_the_signal(enabled, tmp_path):
    """With the federation and without; the figure is logged beside its round."""
    module = Own(Tempered())
    run = federate(module, 2, enabled=enabled, flags={"logger": CSVLogger(tmp_path), "log_every_n_steps": 1})
    assert float(module.loss.factor) == pytest.approx(float(run.callback_metrics["val_loss"]))
    logged = [float(row["factor"]) for row in rows_of(tmp_path / "lightning_logs/version_0/metrics.csv") if row["factor"]]
    assert len(logged) == 2
    assert logged[-1] == pytest.approx(float(module.loss.factor), rel=1e-5)
    assert not any(isinstance(callback, LossAdaptation) for callback in run.callbacks)


def test_a_metric_of_outputs_and_target_as_the_signal():
    module = Calls(Tempered(MulticlassAccuracy(3, average="micro")))
    run = federate(module, 2)
    assert 0 < float(module.loss.factor) < 1
    assert float(module.loss.factor) == pytest.approx(float(run.callback_metrics["val_acc"]))


def test_class_weights_from_recall_are_scikit_learns():
    loss = MetricWeightedCrossEntropy(MulticlassRecall(3, average="none"), 3, epsilon=0.2)
    task = ClassificationTask(Plain().net, 3, ProximalLoss(loss, 0.1))
    federate(task, 2)
    x, y = Blobs().val
    with torch.no_grad():
        expected = 1 / (recall_score(y, task(x).argmax(1), average=None) + 0.2)
    torch.testing.assert_close(loss.class_weights.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


def test_a_class_that_the_servers_set_lacks_weighs_one():
    data, task = Blobs(), ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3))
    x, y = data.val
    data.val = x[y < 2], y[y < 2]
    federate(task, 1, data=data)
    assert float(task.loss.class_weights[2]) == 1.0
    assert (task.loss.class_weights[:2] != 1.0).all()


def test_a_plain_trainer_with_the_callback_whose_sanity_check_and_validate_change_nothing():
    module = Calls(F1WeightedCrossEntropy(3))
    trainer(1, LossAdaptation(), num_sanity_val_steps=2).validate(module, Blobs(), verbose=False)
    assert module.loss.class_weights.tolist() == [1.0, 1.0, 1.0]
    trainer(2, LossAdaptation()).fit(module, Blobs())
    assert module.loss.class_weights.tolist() != [1.0, 1.0, 1.0]


class Forgetful(Tempered):
    """Adapts an attribute that is not a buffer, and gives its figure as a number."""

    server_buffers = ()
    strength = 1.0

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target) * self.strength

    def adapt(self, signal: Tensor) -> None:
        self.strength = float(signal)

    def figures(self) -> dict[str, Any]:
        return {"strength": self.strength}


def test_what_clients_do_not_receive_is_named():
    message = r"'adapt' of Forgetful changed the attribute 'strength', which clients do not receive.*register_buffer\('str"
    with pytest.warns(UserWarning, match=message):
        running = federate(Own(Forgetful()), 1)
    assert float(running.callback_metrics["strength"]) == pytest.approx(float(running.callback_metrics["val_loss"]))


@pytest.mark.parametrize("predicted", [[0, 0, 1, 2, 2], [0, 7, 1, 2, 2]], ids=["three classes", "a fourth by mistake"])
def test_a_class_without_examples_enters_the_mean_once_it_is_predicted(predicted):
    labels = torch.tensor([0, 0, 1, 2, 2])
    task, outputs = ClassificationTask(nn.Identity(), 10), torch.eye(10)[torch.tensor(predicted)]
    (found,) = trainer(1).validate(task, TensorLoader((outputs, labels), 5), verbose=False)
    assert found["val_f1_macro"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert found["val_f1/7"] == 0


def test_the_example_of_the_docs():
    """The focal loss of docs/extend.md: its gamma is twice the last round's accuracy."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "FocusedCrossEntropy" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    task = ClassificationTask(Plain().net, 3, names["FocusedCrossEntropy"]())
    run = federate(task, 2)
    assert float(task.loss.gamma) == pytest.approx(2 * float(run.callback_metrics["val_accuracy"]))
    logits, labels = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]]), torch.tensor([0, 2])
    p = torch.softmax(logits, dim=1)[torch.arange(2), labels]
    focal = -((1 - p) ** task.loss.gamma * p.log()).mean()
    torch.testing.assert_close(task.loss(logits, labels), focal)
