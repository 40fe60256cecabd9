"""What the data layer costs: memory over the number of clients, and what keeping a frozen backbone's features saves.

    python tools/benchmark_data.py memory      # peak memory of 10 and of 1,000 clients over 50,000 images of 32 x 32
    python tools/benchmark_data.py features    # rounds with and without the cache, interleaved
    python tools/benchmark_data.py partition   # 100,000 clients over 10 million labels

Ratios from one run, side by side; images of noise unless ``--images`` names a folder by class.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import (
    VGG19,
    ClassesPartitioner,
    ClassificationTask,
    DirichletPartitioner,
    FeatureCache,
    FederatedDataModule,
    FederatedOrchestrator,
    FrozenBackbone,
    IIDPartitioner,
    ImageDataModule,
    ImageFolderDataModule,
    LeNet,
    LocalTraining,
    QuantityPartitioner,
    ResNet18,
    ShardPartitioner,
)

MEBI = 1024


class Noise(ImageDataModule):
    """Images of noise."""

    def __init__(self, train: int, test: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.sizes = train, test

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Ten classes in turn."""
        generator = torch.Generator().manual_seed(0)
        sets = []
        for size in self.sizes:
            images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
            sets.append(TensorDataset(images, torch.arange(size) % 10))
        return sets[0], sets[1]


def trainer(rounds: int, *callbacks: L.Callback) -> L.Trainer:
    """One that writes nothing."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return L.Trainer(max_epochs=rounds, callbacks=list(callbacks), accelerator="cpu", logger=False, **quiet)


def peak() -> float:
    """Of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEBI


def memory_of(clients: int, images: str | None) -> dict[str, float]:
    """Peaks: after the imports and a model, with the data read, after three rounds of ten clients."""
    module = ClassificationTask(LeNet(3, 32))
    before = peak()
    base = ImageFolderDataModule(images, batch_size=10) if images else Noise(50_000, 10_000, batch_size=10)
    base.setup("fit")
    read = peak()
    data = FederatedDataModule(base, IIDPartitioner(clients), client_test=0.2)
    local = LocalTraining(limit_train_batches=4)
    trainer(3, FederatedOrchestrator(local=local, clients_per_round=10)).fit(module, data)
    held = sum(part.tensors[0].numel() for part in (base._train, base._test) if part is not None) / MEBI**2
    return {"images": held, "before": before, "read": read, "after": peak()}


def memory(images: str | None) -> None:
    """Each number of clients in a process of its own."""
    print(f"{'clients':>8} {'images':>8} {'imports':>8} {'read':>8} {'rounds':>8}   MiB; the last three are peaks")
    for clients in (10, 1_000):
        command = [sys.executable, __file__, "memory-of", "--clients", str(clients)]
        command += ["--images", images] if images else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{clients:>8} " + " ".join(f"{found[name]:8.0f}" for name in ("images", "before", "read", "after")))


def frozen_network(name: str) -> nn.Module:
    """A frozen backbone with a head for ten classes: VGG-19's two hidden layers, or one on ResNet-18's 512 features."""
    if name == "vgg19":
        return VGG19(10, (512, 512), 0.0, pooled=1)
    backbone = ResNet18(num_classes=10).network
    backbone.fc = nn.Identity()
    return FrozenBackbone(backbone, nn.Linear(512, 10))


def seconds_with(cache: bool, rounds: int, network: str) -> float:
    """Wall-clock time of a fit of the head on 200 images: 3 clients, 2 local epochs."""
    torch.manual_seed(0)
    module = ClassificationTask(frozen_network(network))
    data = FederatedDataModule(Noise(200, 50, batch_size=32, eval_batch_size=50), IIDPartitioner(3))
    federation = FederatedOrchestrator(local=LocalTraining(max_epochs=2))
    run = trainer(rounds, federation, FeatureCache(enabled=cache))
    begun = time.perf_counter()
    run.fit(module, data)
    return time.perf_counter() - begun


def features(repeats: int, rounds: int, network: str) -> None:
    """Without over with the cache, and with over with as a control."""
    seconds_with(True, 1, network)
    ratios, controls = [], []
    for _ in range(repeats):
        first, without, again = (seconds_with(cache, rounds, network) for cache in (True, False, True))
        ratios.append(2 * without / (first + again))
        controls.append(again / first)
    for name, values in (("without the cache / with it", ratios), ("with / with (control)", controls)):
        print(f"{name}: median {statistics.median(values):.2f} (from {min(values):.2f} to {max(values):.2f}), {rounds} rounds")


def partition() -> None:
    """Time and peak memory of each partitioner."""
    size, clients = 10_000_000, 100_000
    labels = torch.randint(0, 10, (size,), generator=torch.Generator().manual_seed(0))
    for partitioner in (
        IIDPartitioner(clients),
        DirichletPartitioner(clients, min_examples=1),
        QuantityPartitioner(clients, beta=5.0, min_examples=1),
        ShardPartitioner(clients),
        ClassesPartitioner(clients),
    ):
        begun = time.perf_counter()
        found = partitioner.partition(size, labels)
        seconds = time.perf_counter() - begun
        print(f"{type(partitioner).__name__}: {seconds:.1f} s, {len(found)} clients, peak {peak():.0f} MiB")


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "features", "partition", "memory-of"))
    parser.add_argument("--images", help="folder by class")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--network", choices=("vgg19", "resnet18"), default="vgg19")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "memory-of":
        print(json.dumps(memory_of(args.clients, args.images)))
    elif args.what == "memory":
        memory(args.images)
    elif args.what == "features":
        features(args.repeats, args.rounds, args.network)
    else:
        partition()


if __name__ == "__main__":
    main()
