"""Data, buffers and features: that they are on the device, and hold what they must."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from federations import CLASSES, federate, network, trainer, weights
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import (
    ClassificationTask,
    F1WeightedCrossEntropy,
    FeatureCache,
    FederatedDataModule,
    FederatedOrchestrator,
    FrozenBackbone,
    IIDPartitioner,
    ImageDataModule,
    LeNet,
    LocalTraining,
    RandomCropFlip,
)
from fl_lightning.data import TensorLoader
from gpu.setting import Findings, Setting, equal_bits, largest_difference


class Pictures(ImageDataModule):
    """Generated images: each class has a bright square of its own, under noise.

    Args:
        train: number of training images.
        test: number of test images.
        size: height and width.
        **settings: see :class:`ImageDataModule`.

    Attributes:
        raw: device and dtype of the batches as they come from the loader.
    """

    def __init__(self, train: int, test: int, size: int = 28, **settings: Any) -> None:
        super().__init__(**settings)
        self.sizes, self.size = (train, test), size
        self.raw: set[tuple[str, torch.dtype]] = set()

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Ten classes in turn."""
        generator = torch.Generator().manual_seed(0)
        sets = []
        for count in self.sizes:
            labels = torch.arange(count) % 10
            images = torch.randint(0, 100, (count, 1, self.size, self.size), dtype=torch.uint8, generator=generator)
            for k in range(10):
                row, column = 4 + 10 * (k // 5), 1 + 5 * (k % 5)
                images[labels == k, :, row : row + 8, column : column + 5] += 120
            sets.append(TensorDataset(images, labels))
        return sets[0], sets[1]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Note what arrived."""
        self.raw.add((batch[0].device.type, batch[0].dtype))
        return super().on_after_batch_transfer(batch, dataloader_idx)


def class_weights(setting: Setting, found: Findings) -> None:
    """AdaFed's class weights and BatchNorm's buffers: on the device, and what the logged F1 of each class says."""
    L.seed_everything(5, verbose=False)
    task = ClassificationTask(network(batchnorm=True), CLASSES, F1WeightedCrossEntropy(CLASSES))
    places: set[str] = set()

    class Watch(L.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            places.update(tensor.device.type for tensor in (*pl_module.buffers(), *pl_module.parameters()))

    run = federate(task, 3, Watch(), local=LocalTraining(precision="32-true"), accelerator=setting.accelerator)
    found["devices"] = sorted(places)
    found.require(places == {setting.device}, f"parameters or buffers are on {sorted(places)}")
    expected = [1 / (float(run.callback_metrics[f"val_f1/{c}"]) + 0.1) for c in range(CLASSES)]
    actual = task.loss.class_weights.tolist()
    found["class_weights"], found["expected"] = actual, expected
    near = all(abs(one - other) < 1e-4 for one, other in zip(actual, expected, strict=True))
    found.require(near, "the class weights are not 1 / (F1 + 0.1)")
    found.require(len(set(expected)) > 1, "the classes' F1 are all equal: nothing was compared")
    statistics = task.network[1].running_mean
    found.require(bool(statistics.abs().max() > 0), "BatchNorm's statistics have not moved")


@contextmanager
def indexed_on() -> Iterator[set[str]]:
    """Note the devices of the tensors out of which shuffled batches are indexed."""
    places: set[str] = set()
    iterate = TensorLoader.__iter__

    def noted(loader: TensorLoader) -> Any:
        if loader.generator is not None:
            places.add(loader.tensors[0].device.type)
        return iterate(loader)

    with patch.object(TensorLoader, "__iter__", noted):
        yield places


def images(setting: Setting, found: Findings) -> None:
    """Bytes in a tensor: placed on the GPU whole, indexed there, scaled there; a limit of 0 leaves them on the CPU."""
    results = {}
    for name, limit, place in (("placed", None, setting.device), ("not placed", 0.0, "cpu")):
        L.seed_everything(1, verbose=False)
        data = Pictures(setting.of(4000, 200), setting.of(1000, 100), batch_size=20, eval_batch_size=500)
        task = ClassificationTask(LeNet(1, 28), 10, None, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
        federation = FederatedOrchestrator(local=LocalTraining(precision="32-true", engine="fabric"))
        run = trainer(setting.of(4, 1), federation, accelerator=setting.accelerator, devices=1, deterministic=True)
        begun = time.perf_counter()
        with indexed_on() as places:
            run.fit(task, FederatedDataModule(data, IIDPartitioner(5), memory_limit=limit))
        torch.use_deterministic_algorithms(False)
        found.require(places == {place}, f"{name}: training images were indexed on {sorted(places)}")
        results[name] = weights(task)
        found[f"{name}: seconds"] = round(time.perf_counter() - begun, 2)
        found[f"{name}: batches arrived as"] = sorted(f"{device} {dtype}" for device, dtype in data.raw)
        found.require(data.raw == {(setting.device, torch.uint8)}, f"{name}: batches arrived as {data.raw}")
        accuracy = float(run.callback_metrics["val_accuracy"])
        found[f"{name}: val_accuracy"] = accuracy
        found.require(setting.small or accuracy > 0.9, f"{name}: accuracy {accuracy:.3f}")
    found["largest_difference"] = largest_difference(results["placed"], results["not placed"])
    found.require(equal_bits(results["placed"], results["not placed"]), "placing the data changes the weights")


def augmentation(setting: Setting, found: Findings) -> None:
    """Random crops and flips on the device: each image is one of its crops; a rerun draws the same."""
    device, padding = torch.device(setting.device), 2
    original = torch.rand(setting.of(256, 16), 3, 12, 12, device=device)
    transform = RandomCropFlip(padding)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(transform(original))
    found.require(torch.equal(draws[0], draws[1]), "equal seeds give different images")
    found.require(not torch.equal(draws[0], draws[2]), "different seeds give equal images")
    padded = nn.functional.pad(original, [padding] * 4)
    span = range(2 * padding + 1)
    crops = torch.stack([padded[:, :, top : top + 12, left : left + 12] for top in span for left in span], dim=1)
    candidates = torch.cat([crops, crops.flip(4)], dim=1)
    matches = (candidates == draws[0].unsqueeze(1)).flatten(2).all(2)
    found["images"], found["kinds_drawn"] = len(original), int(matches.any(0).sum())
    found.require(bool(matches.any(1).all()), "an image is none of its crops and flips")
    found.require(matches.any(0).sum() > 10, "too few kinds of crops were drawn")
    runs = []
    for _ in range(2):
        L.seed_everything(1, verbose=False)
        data = Pictures(200, 50, batch_size=20, augmentation=RandomCropFlip(2))
        task = ClassificationTask(LeNet(1, 28), 10)
        federate(task, 1, data=data, partitioner=IIDPartitioner(3), local=LocalTraining(), accelerator=setting.accelerator)
        runs.append(weights(task))
    gap = largest_difference(*runs)
    found["rerun_difference"] = gap
    found.require(gap < 1e-4, f"a rerun with the same seed differs by {gap:.2g}")


def kept_features(setting: Setting, found: Findings) -> None:
    """Features of a frozen backbone that are computed once give the head that computing them in each step gives."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.Flatten())
    head, results = nn.Linear(32 * 16, 10), {}
    start = copy.deepcopy((backbone.state_dict(), head.state_dict()))
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        for kept in (True, False):
            backbone.load_state_dict(start[0])
            head.load_state_dict(start[1])
            L.seed_everything(0, verbose=False)
            data = Pictures(setting.of(2000, 60), setting.of(500, 20), batch_size=20)
            task = ClassificationTask(FrozenBackbone(backbone, head), 10, None, lambda p: torch.optim.SGD(p, lr=0.1))
            begun = time.perf_counter()
            local, cache = LocalTraining(max_epochs=2, precision="32-true"), FeatureCache(enabled=kept)
            federate(task, 3, cache, data=data, partitioner=IIDPartitioner(3), local=local, accelerator=setting.accelerator)
            found["seconds kept" if kept else "seconds anew"] = round(time.perf_counter() - begun, 2)
            results[kept] = weights(task)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    gap = largest_difference(results[True], results[False])
    found["largest_difference"] = gap
    found.require(gap < 1e-3, f"kept features change the head by {gap:.2g}")
    moved = largest_difference({"w": results[True]["network.head.weight"]}, {"w": start[1]["weight"]})
    found.require(moved > 1e-3, "the head has not moved")
