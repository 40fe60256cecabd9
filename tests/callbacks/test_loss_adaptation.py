"""One interface for whatever a loss adapts to: a metric of (outputs, target), or a figure that the module logs."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest
import torch
from command_line import ROOT
from federations import Blobs, Plain, blobs, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.loggers import CSVLogger
from sklearn.metrics import f1_score, recall_score
from torch import Tensor, nn
from torchmetrics.classification import BinaryRecall, MulticlassAccuracy, MulticlassHammingDistance, MulticlassRecall

from fl_lightning import (
    AdaFed,
    AdaptiveLoss,
    ClassificationTask,
    ConfigurationError,
    F1WeightedCrossEntropy,
    LossAdaptation,
    MetricWeightedCrossEntropy,
    ProximalLoss,
)
from fl_lightning.data import TensorLoader


class Tempered(AdaptiveLoss):
    """All a user writes for a signal of their own: cross-entropy scaled by the last validation's loss."""

    server_buffers = ("factor",)
    factor: Tensor

    def __init__(self, signal: Any = "val_loss") -> None:
        super().__init__()
        self.signal = signal
        self.register_buffer("factor", torch.ones(()))

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target) * self.factor

    def adapt(self, signal: Tensor) -> None:
        self.factor.copy_(signal)

    def figures(self) -> dict[str, Tensor]:
        return {"factor": self.factor.clone()}


class Own(Plain):
    """A user's module with an adaptive loss, validated by what it logs itself."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])


class Calls(Own):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.loss(self(batch[0]), batch[1])


@pytest.mark.parametrize("enabled", [True, False])
def test_a_logged_figure_as_the_signal(enabled, tmp_path):
    """With the federation and without; the figure is logged beside its round."""
    module = Own(Tempered())
    run = federate(module, 2, enabled=enabled, flags={"logger": CSVLogger(tmp_path), "log_every_n_steps": 1})
    assert float(module.loss.factor) == pytest.approx(float(run.callback_metrics["val_loss"]))
    rows = list(csv.DictReader((tmp_path / "lightning_logs/version_0/metrics.csv").open()))
    logged = [float(row["factor"]) for row in rows if row["factor"]]
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
        found = task(x).argmax(1)
    expected = 1 / (recall_score(y, found, average=None) + 0.2)
    torch.testing.assert_close(loss.class_weights.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


def test_a_class_that_the_servers_set_lacks_weighs_one():
    class Two(Blobs):
        def __init__(self) -> None:
            super().__init__()
            x, y = self.val
            self.val = x[y < 2], y[y < 2]

    task = ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3))
    federate(task, 1, data=Two())
    assert float(task.loss.class_weights[2]) == 1.0
    assert (task.loss.class_weights[:2] != 1.0).all()


def test_a_plain_trainer_with_the_callback():
    module = Calls(F1WeightedCrossEntropy(3))
    trainer(2, LossAdaptation()).fit(module, Blobs())
    assert module.loss.class_weights.tolist() != [1.0, 1.0, 1.0]


def test_resume_goes_on_with_the_same_bits(tmp_path):
    def module() -> Calls:
        torch.manual_seed(5)
        return Calls(ProximalTempered())

    class ProximalTempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Tempered("val_acc"), F1WeightedCrossEntropy(3)

        def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
            return self.one(outputs, target) + self.other(outputs, target)

    whole, first, second = module(), module(), module()
    federate(whole, 4)
    federate(first, 2, every_round(tmp_path), flags={"enable_checkpointing": True})
    federate(second, 4, ckpt_path=str(tmp_path / "last.ckpt"))
    assert same_bits(weights(whole), weights(second))
    assert not same_bits(weights(whole), weights(first))


def test_the_sanity_check_and_validate_leave_it_alone():
    module = Calls(F1WeightedCrossEntropy(3))
    run = trainer(1, LossAdaptation(), num_sanity_val_steps=2)
    run.validate(module, Blobs(), verbose=False)
    assert module.loss.class_weights.tolist() == [1.0, 1.0, 1.0]


def test_a_module_that_never_calls_its_loss_in_validation():
    with pytest.raises(ConfigurationError, match=r"but Own did not call it\. Compute the loss in 'validation_step'"):
        federate(Own(F1WeightedCrossEntropy(3)))


def test_a_figure_that_nobody_logs():
    with pytest.raises(
        ConfigurationError, match=r"adapts to 'val_mae', which Own does not log in validation. It logs: .*val_acc"
    ):
        federate(Own(Tempered("val_mae")), flags={"num_sanity_val_steps": 0})


class Forgetful(Tempered):
    """Adapts an attribute that is not a buffer, and gives its figure as a number."""

    server_buffers = ()

    def __init__(self) -> None:
        super().__init__()
        self.strength = 1.0

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target) * self.strength

    def adapt(self, signal: Tensor) -> None:
        self.strength = float(signal)

    def figures(self) -> dict[str, Any]:
        return {"strength": self.strength}


def test_what_clients_do_not_receive_is_named():
    message = (
        r"'adapt' of Forgetful changed the attribute 'strength', which clients do not receive.*register_buffer\('strength'"
    )
    with pytest.warns(UserWarning, match=message):
        running = federate(Own(Forgetful()), 1)
    assert float(running.callback_metrics["strength"]) == pytest.approx(float(running.callback_metrics["val_loss"]))


@pytest.mark.parametrize("task", [False, True])
def test_a_misspelt_buffer_of_the_server(task):
    class Misspelt(Tempered):
        server_buffers = "faktor"  # a single name needs no comma

    message = r"'server_buffers' of Misspelt names 'faktor', but its buffers are: factor. Correct the name, or call"
    with pytest.raises(ConfigurationError, match=message):
        _ = ClassificationTask(3, nn.Linear(4, 3), Misspelt()) if task else federate(Own(Misspelt()), 1)


def test_a_loss_that_does_not_say_what_it_adapts_to():
    class Silent(Tempered):
        def __init__(self) -> None:
            super().__init__()
            del self.signal

    with pytest.raises(ConfigurationError, match=r"Silent has no signal to adapt to. Set self.signal in its __init__"):
        federate(Own(Silent()))


def test_a_metric_without_a_value_for_each_class():
    loss = MetricWeightedCrossEntropy(MulticlassRecall(3, average="macro"), 3)
    with pytest.raises(ConfigurationError, match=r"each of 3 classes, but its metric returns shape \(\).*'average: none'"):
        federate(ClassificationTask(Plain().net, 3, loss))


def test_a_metric_of_which_lower_is_better():
    with pytest.raises(
        ConfigurationError, match=r"'model.loss.metric' must be a metric that sets its class attribute 'higher_is_better'"
    ):
        MetricWeightedCrossEntropy(MulticlassHammingDistance(3, average="none"), 3)


def test_clients_do_not_adapt():
    """Their module validates on the server's set too, where the strategy asks; only the aggregated model counts."""
    x, y = blobs(61, 2)
    module = Calls(F1WeightedCrossEntropy(3))
    federate(module, 1, strategy=AdaFed("val_acc"))
    with torch.no_grad():
        found = module(x).argmax(1)
    expected = 1 / (torch.from_numpy(f1_score(y, found, average=None)) + 0.1)
    torch.testing.assert_close(module.loss.class_weights.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (BinaryRecall(), r"BinaryRecall cannot compare predictions of torch.float32.*Set 'model.loss.metric' to a metric"),
        (MulticlassRecall(2, average="none"), r"MulticlassRecall cannot compare .* with the same number of classes"),
    ],
)
def test_a_metric_for_other_data(metric, message):
    with pytest.raises(ConfigurationError, match=message):
        federate(ClassificationTask(Plain().net, 3, MetricWeightedCrossEntropy(metric, 3)))


def test_a_metric_that_leaves_its_range():
    loss = MetricWeightedCrossEntropy(MulticlassRecall(2, average="none"), 2)
    with pytest.raises(
        ConfigurationError, match=r"needs values in \[0, 1\], for which higher is better, but its metric returns \[-0.5"
    ):
        loss.adapt(torch.tensor([-0.5, 0.2]))


@pytest.mark.parametrize("predicted", [[0, 0, 1, 2, 2], [0, 7, 1, 2, 2]], ids=["three classes", "a fourth by mistake"])
def test_a_class_without_examples_enters_the_mean_once_it_is_predicted(predicted):
    labels = torch.tensor([0, 0, 1, 2, 2])
    task, outputs = ClassificationTask(nn.Identity(), 10), torch.eye(10)[torch.tensor(predicted)]
    (found,) = trainer(1).validate(task, TensorLoader((outputs, labels), 5), verbose=False)
    assert found["val_f1_macro"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert found["val_f1/7"] == 0


def test_the_example_of_the_docs():
    """The focal loss of docs/adaptive_losses.md: its gamma is twice the last round's accuracy."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "adaptive_losses.md").read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    task = ClassificationTask(Plain().net, 3, names["FocusedCrossEntropy"]())
    run = federate(task, 2)
    assert float(task.loss.gamma) == pytest.approx(2 * float(run.callback_metrics["val_accuracy"]))
    logits, labels = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]]), torch.tensor([0, 2])
    p = torch.softmax(logits, dim=1)[torch.arange(2), labels]
    focal = -((1 - p) ** task.loss.gamma * p.log()).mean()
    torch.testing.assert_close(task.loss(logits, labels), focal)
