"""Networks, tasks, losses and metrics."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from adaptive import Own, Tempered
from algorithms import Scaled
from client_sites import Stream, fitted
from engine_runs import variant
from federations import SIZES, Blobs, Consecutive, NoValidation, Plain, blobs, changed, federate, network
from refusing import Refusal, fits, fitting, later, made, told
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import classification as metrics

import fl_lightning as fl
from fl_lightning.core.capabilities import Capability, Removal
from fl_lightning.functional.exact_moments import moments_of, together

# ------ Networks, their pretrained weights, frozen parts and scales


def streamed() -> fl.FederatedDataModule:
    return fl.FederatedDataModule.from_clients({"a": Stream(TensorDataset(*blobs(9, 1)))})


class Hides(fl.Option):
    """An option with which the server sees no single client."""

    def removes(self) -> Any:
        yield Removal(Capability.SINGLE_UPDATES, "it hides them", "remove it")


Seals = made("Seals", Hides, seals=True)  # It says that it adds up what it hides, and does not


TEXTS = DataLoader([{"text": torch.ones(3)} for _ in range(sum(SIZES))], batch_size=5)


class Holding(Blobs):
    """Points with a value in a column."""

    def __init__(self, rows: Any, column: int, value: float) -> None:
        super().__init__()
        self.train[0][rows, column] = value


Wrong = made("Wrong", Blobs, statistics=lambda self, batches: 3)


class Twice(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.more = fl.Standardized(fl.MLP(4, [2], 3), 4)


Changing = made("Changing", Scaled, on_after_batch_transfer=lambda self, batch, dataloader_idx: [batch[0] * 2, batch[1]])


class Wide(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = fl.Standardized(network(), 5)


class Bare(Scaled):
    """Without metrics, which private steps do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.train_acc = None


def scaling(module: Any = Scaled, **settings: Any) -> Callable[[], Any]:
    return fitting(module=module, **settings)


PRIVATE = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7))
CHANNELS = "The inputs have 4 channels, but 'model.network.num_features' is 5. Set it to 4."
INFINITE = {"data": Holding(10, 2, math.inf)}

SCALES = [
    told(scaling(data=Wrong()), "'statistics' of Wrong returned a int. Return what 'fl_lightning.functional.exact_mom"),
    Refusal(scaling(transforms=[fl.ClientPrivacy(1.0, 1.0, "local", noise_seed=1)]), "inputs, which get no noise, ... does"),
    Refusal(scaling(Bare, local=PRIVATE), "get no noise, but 'federation.local.privacy' does not cover"),
    Refusal(scaling(options=[Hides()]), "Standardized reads sums of each client, but it hides them"),
    Refusal(scaling(options=[Seals()]), "Standardized needs the sums of the inputs over all clients, which no option adds up"),
    told(scaling(Wide), CHANNELS),
    told(scaling(Wide, secure_aggregation=fl.SecureAggregation()), CHANNELS),
    told(scaling(**INFINITE), "The inputs cannot be measured: A number is infinite"),
    Refusal(scaling(Changing), "Changing changes batches in 'on_after_batch_transfer', but Standardized is measured before"),
    Refusal(scaling(Twice), "Twice contains Standardized 2 times"),
    told(scaling(data=changed("train", TEXTS)), "but a batch is a dict. Scale such inputs in the module itself"),
    told(scaling(data=Holding(slice(None), 2, math.nan)), "No client has a number for channel 2 of the inputs. Leave it out"),
    told(lambda: fitted(streamed(), module=Scaled), "Client a trains on a stream, whose inputs cannot be measured before"),
    told(lambda: together([moments_of(torch.ones(2, 3)), moments_of(torch.ones(2, 2))]), "Inputs have different numbers of"),
]


def freezing(parts: Any) -> Callable[[], Any]:
    return lambda: federate(Plain(batchnorm=True), 1, fl.TransferLearning(parts))


def thawing(**settings: Any) -> Callable[[], Any]:
    return lambda: federate(Plain(batchnorm=True), 3, fl.TransferLearning(["net.0", "net.1"], thaw_after=1), **settings)


@later
def resnet(content: Any = None) -> None:
    Path("own.pt").write_text("nothing") if content is None else torch.save(content, "own.pt")
    fl.ResNet18(weights="own.pt")


def alone() -> None:
    federation = {"client_evaluation": fl.ClientEvaluation(0, "val_acc", compare_alone=True)}
    data = fl.FederatedDataModule(Blobs(), Consecutive(), client_test=0.2)
    fitted(data, fl.TransferLearning(["net.0"], thaw_after=1), rounds=3, **federation)


NETWORKS = [
    Refusal(thawing(strategy=fl.Scaffold()), "In round 1, 'control' of Scaffold.broadcast is a tensor of shape ..., but"),
    Refusal(thawing(transforms=[fl.TopK(0.5)]), "The trained parameters changed in round 1, but clients keep"),
    Refusal(alone, "compare_alone' to false, or freeze the same parts in all rounds"),
    Refusal(freezing(["top"]), "cannot freeze 'top', which is not a part of Plain with parameters. Set 'parts' to some"),
    Refusal(freezing(["net"]), "TransferLearning freezes every trained parameter of Plain: 'parts' is ['net']"),
    Refusal(lambda: fl.TransferLearning(["a"], thaw_after=2, freeze_after=2), "thaw_after' must ... 'freeze_after', 2, or"),
    Refusal(resnet({"conv1.weight": torch.ones(1)}), "are not those of torchvision's resnet18: Missing key"),
    Refusal(resnet(), "Cannot load the weights ... of resnet18 ( ... Set 'model.network.weights' to a file with a state dict"),
    Refusal(lambda: fl.ResNet18(weights="IMAGENET9"), "neither a file nor one of torchvision's ... or to one of IMAGENET1K_V1"),
    Refusal(lambda: fl.ResNet18(channels=1, weights="DEFAULT"), "must be null if 'channels' is not 3"),
]


# ------ Tasks, losses and transforms


class Numbers(Blobs):
    """Real targets of a shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.train, self.val = ((x, x.sum(1).reshape(-1, *shape)) for x, _ in (self.train, self.val))


class Several(Blobs):
    """Targets of shape (B, C), one column for each class, as for examples of several classes."""

    def __init__(self) -> None:
        super().__init__()
        self.train, self.val = ((x, nn.functional.one_hot(y, 3)) for x, y in (self.train, self.val))


def task(network: Any, *args: Any, kind: Any = fl.RegressionTask, **settings: Any) -> Callable[[], Any]:
    return lambda: federate(kind(network, *args), 1, **{"data": Numbers(), **settings})


def classes(network: Any, *args: Any, **settings: Any) -> Callable[[], Any]:
    return task(network, *args, kind=fl.ClassificationTask, **{"data": Blobs(), **settings})


PULLED = fl.ProximalLoss(fl.CrossEntropy(), 0.1)
WITH_GRADIENT = torch.zeros(2, 3, requires_grad=True)
LINE = nn.Linear(4, 1)
ALONE = changed("train", DataLoader(TensorDataset(blobs(sum(SIZES), 1)[0]), batch_size=7))
TASKS = [
    Refusal(task(nn.Linear(4, 2)), "outputs of shape ( ... , 2), but the targets have shape ("),
    Refusal(task(nn.Linear(5, 1)), "Linear cannot take inputs of shape"),
    Refusal(task(LINE, nn.CrossEntropyLoss()), "must be a loss of numbers, ... but is 'CrossEntropyLoss'"),
    Refusal(classes(nn.Linear(4, 3), 3, nn.MSELoss()), "MSELoss cannot compare ... Set 'model.loss' to one for such"),
    Refusal(task(LINE, strategy=fl.AdaFed(metrics.BinaryF1Score())), "BinaryF1Score cannot compare ... strategy.metric'"),
    Refusal(task(LINE, data=ALONE), "RegressionTask learns from batches of (input, target), but the data return only inputs"),
    Refusal(classes(nn.Linear(4, 3), 3, fl.CrossEntropy(), data=Several()), "ClassificationTask learns ... shape (5, 3) for 5"),
    Refusal(
        lambda: federate(
            fl.RegressionTask(LINE, readout=fl.DensityCount(100.0)), data=made("Dense", Numbers, density_scale=10)()
        ),
        "'model.readout.scale' is 100.0, but 'data.datamodule.density_scale' is 10, so counts would be wrong",
    ),
    Refusal(lambda: fl.RegressionTask(LINE, l2=-1.0), "'model.l2' must be 0 or above, but is -1.0"),
    Refusal(lambda: fl.RegressionTask(LINE, mape_floor=0.0), "mape_floor' must be above 0, in units of the target, but is 0.0"),
    Refusal(lambda: fl.Hinge()(torch.zeros(4, 1), torch.zeros(4)), "one class per example, but got ... targets of"),
    *(
        Refusal(lambda compare=compare: compare(torch.zeros(3, 1), torch.zeros(3)), "of the same shape, but ... 1) and (3,)")
        for compare in (fl.HalfSquaredError(), fl.PercentageError().update, fl.RobustLoss())
    ),
    Refusal(lambda: fl.RobustLoss(adaptive=False, adapt_scale=True), "adapt_scale' must be false if 'adaptive' is false"),
    Refusal(lambda: fl.ProximalLoss(fl.CrossEntropy(), mu=-1.0), "'mu' must be 0 or above, but is -1.0"),
    Refusal(lambda: PULLED(WITH_GRADIENT, torch.tensor([0, 1])), "Call its anchor(self.parameters()) in 'on_train_start'"),
    Refusal(lambda: fl.SimulatedTasksDataModule(kind="clusters", outliers=0.1), "outliers' must be 0 unless 'kind' is reg"),
]


class Answer(fl.Transform):
    """Returns something else than a message of the same length, or than the same change."""

    def __init__(self, sent: Any = None, received: Any = None) -> None:
        self.sent, self.received = sent, received

    def apply(self, message: Any, sender: Any) -> Any:
        return message if self.sent is None else self.sent(message)

    def receive(self, change: Any, received: Any, expected: Any, draw: Any, secret: Any) -> Any:
        return change if self.received is None else self.received(change)


TRANSFORMS = [
    fits("Quantize changes the updates that ... the route", transforms=[fl.Quantize()], route=fl.FedCyclic()),
    *(  # of 67 parameters, a mean or the first number would be added to each
        fits(f"Answer.apply ... {words}", transforms=[Answer(sent)])
        for sent, words in (
            (lambda message: replace(message, change=message.change[:1]), "'change' is a tensor of shape (1,) in float64"),
            (lambda message: [], "returned an object of the class list, but a Message is needed"),
            (lambda message: replace(message) and None, "returned None, but a Message is needed. Return"),
        )
    ),
    *(
        fits(f"Answer.receive returned {words}, but a float64 tensor of shape (67,)", transforms=[Answer(received=received)])
        for received, words in (
            (lambda change: change.mean(), "a tensor of shape () in float64"),
            (lambda change: change.float(), "a tensor of shape (67,) in float32"),
        )
    ),
]


# ------ Metrics and losses


Misspelt = made("Misspelt", Tempered, server_buffers="faktor")


class Silent(Tempered):
    def __init__(self) -> None:
        super().__init__()
        del self.signal


def by(metric: Any) -> Any:
    """Return a task whose loss weighs classes by a metric."""
    return lambda: fl.ClassificationTask(Plain().net, 3, fl.MetricWeightedCrossEntropy(metric, 3))


def scored(value: float) -> Any:
    """Return a module that logs a score."""
    return variant(on_validation_epoch_end=lambda self: self.log("score", value))


BY_OWN = fl.AdaFed("score", mode="max")
BY_SCORE = variant(fl.WeightedAverage, weight=lambda self, update: update.score)()
STEPS, BY_METRIC = variant(validation_step=lambda self, *_: None), fl.AdaFed(metrics.MulticlassAccuracy(3))
SILENT = variant(validation_step=L.LightningModule.validation_step)
NO_DIRECTION = "must be a metric that sets its class attribute 'higher_is_better'"
METRIC = [
    Refusal(lambda: fl.AdaFed("val_acuracy"), "'val_acuracy' is not the name ... Did you mean val_accuracy? If it"),
    Refusal(by(metrics.MulticlassHammingDistance(3, average="none")), f"'model.loss.metric' {NO_DIRECTION}"),
    Refusal(
        lambda: fl.MetricWeightedCrossEntropy(metrics.MulticlassRecall(2, average="none"), 2).adapt(torch.tensor([-0.5, 0.2])),
        "needs values in [0, 1], for which higher is better, but its metric returns [-0.5",
    ),
    fits("each of 3 classes, but its metric returns shape ()", module=by(metrics.MulticlassRecall(3, average="macro"))),
    fits("BinaryRecall cannot compare predictions of ... Set 'model.loss.metric' to a", module=by(metrics.BinaryRecall())),
    fits("MulticlassRecall cannot compare ... with the same", module=by(metrics.MulticlassRecall(2, average="none"))),
    fits("but Own did not call it. Compute the loss in", module=lambda: Own(fl.F1WeightedCrossEntropy(3))),
    fits("adapts to 'val_mae', which Own does not log in validation. It", module=lambda: Own(Tempered("val_mae"))),
    fits("'server_buffers' of Misspelt names ... Correct the name, or call", module=lambda: Own(Misspelt())),
    fits("Silent has no signal to adapt to. Set self.signal in its __init__", module=lambda: Own(Silent())),
    fits("adapts to the MulticlassRecall on", module=by(metrics.MulticlassRecall(3, average="none")), data=NoValidation()),
    fits("needs val_acc, but Variant has no 'validation_step' to log it in", module=SILENT, strategy=fl.AdaFed("val_acc")),
    fits("needs 'val_acc' of models, but the set to", strategy=fl.AdaFed("val_acc"), data=changed("val", [])),
    fits("needs val_acc on the server's validation set, but", strategy=fl.AdaFed("val_acc"), data=NoValidation()),
    fits("'val_accuracy', which Plain does not log ... It logs: val_acc, val_loss", strategy=fl.AdaFed()),
    Refusal(fitting(module=scored(-0.5), strategy=BY_OWN), "gave client 1 the weight -0.5 in round 0, but", fl.ClientError),
    fits("Variant.weight returns None, but must return a number. 'update.score' is known", strategy=BY_SCORE),
    fits("batches of (input, target), but it got a dict", module=STEPS, strategy=BY_METRIC, data=changed("val", TEXTS)),
]


REFUSALS = [*SCALES, *NETWORKS, *TASKS, *TRANSFORMS, *METRIC]
