"""Clients with data of their own: datasets, datamodules, and what a user names in YAML."""

import itertools
from pathlib import Path
from typing import Any

import lightning as L
import torch
from federations import SIZES, Blobs, Plain, blobs, trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning import FederatedOrchestrator, FederationCallback, LocalTraining

NAMES = ("a", "b", "c")
VAL = TensorDataset(*blobs(61, 2))


def shares(seed: int = 1, sizes: Any = SIZES) -> dict[str, TensorDataset]:
    """The clients' parts of the usual blobs, given in another order than that of their names."""
    x, y = blobs(sum(sizes), seed)
    parts = zip(NAMES, x.split(sizes), y.split(sizes), strict=False)
    return dict(reversed([(name, TensorDataset(*own)) for name, *own in parts]))


def fitted(data: Any, *callbacks: Any, rounds: int = 2, module: Any = Plain, **parts: Any) -> Any:
    """Fit a federation of these data; return the module and its Trainer."""
    torch.manual_seed(6)
    made = module()
    local = parts.pop("local", None) or LocalTraining(max_epochs=2)
    run = trainer(rounds, FederatedOrchestrator(local=local, **parts), *callbacks)
    run.fit(made, data)
    return made, run


class Counts(FederationCallback):
    """Keeps client, examples and steps of each turn."""

    def __init__(self) -> None:
        self.examples: list[tuple[int, int, int]] = []

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.examples.append((update.client, update.num_examples, update.num_steps))


def numbers(size: int = 40, begin: int = 0) -> TensorDataset:
    """Examples that tell their number in the first feature."""
    x = torch.zeros(size, 4)
    x[:, 0] = torch.arange(size) + begin
    return TensorDataset(x, torch.arange(size) % 3)


def of_persons(rows: int, persons: Any) -> TensorDataset:
    dataset = TensorDataset(*Blobs(n=rows).train)
    dataset.persons = persons
    return dataset


class Visits(Blobs):
    """The usual blobs, whose rows belong to persons."""

    def __init__(self, persons: Any, **more: Any) -> None:
        super().__init__(**more)
        self.persons = persons

    def train_dataloader(self) -> Any:
        dataset = TensorDataset(*self.train)
        dataset.persons = self.persons
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=self.shuffle)


class Read(Dataset[Any]):
    """Is read example by example."""

    def __init__(self, tensors: TensorDataset) -> None:
        self.of = tensors

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> Any:
        return self.of[index]


class Missing(Read):
    """Names a file that does not exist, in one of its methods."""

    def __init__(self, tensors: TensorDataset, where: str = "item") -> None:
        super().__init__(tensors)
        self.where = where

    def __len__(self) -> int:
        return len(Path("scan_7.png").read_text()) if self.where == "len" else super().__len__()

    def __getitem__(self, index: int) -> Any:
        return Path("scan_7.png").read_text() if self.where == "item" and index == 2 else super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """Yields examples, and does not know how many."""

    def __init__(self, examples: TensorDataset, endless: bool = False) -> None:
        self.examples, self.endless = examples, endless

    def __iter__(self) -> Any:
        own = (self.examples[k] for k in range(len(self.examples)))
        return itertools.cycle(list(own)) if self.endless else own


class Own(L.LightningDataModule):
    """Loaders as they are given."""

    def __init__(self, train: Any, val: Any = None) -> None:
        super().__init__()
        self.train, self.val = train, val

    def train_dataloader(self) -> Any:
        return self.train

    def val_dataloader(self) -> Any:
        return self.val


class Hospital(L.LightningDataModule):
    """A client's own datamodule; where it says that it fails, it has no such file."""

    def __init__(self, fails: str = "", seed: int = 1) -> None:
        super().__init__()
        self.fails, self.seed = fails, seed
        self.read("init")

    def read(self, where: str) -> None:
        if where == self.fails:
            Path("index.csv").read_text()

    def prepare_data(self) -> None:
        self.read("prepare")

    def setup(self, stage: str) -> None:
        self.read("setup")

    def train_dataloader(self) -> Any:
        self.read("train")
        return DataLoader(TensorDataset(*blobs(12, self.seed)), 5)

    def val_dataloader(self) -> Any:
        self.read("val")
        return DataLoader(TensorDataset(*blobs(12, self.seed)), 5)


class Images(L.LightningDataModule):
    """What a user names in YAML."""

    def __init__(self, seed: int = 0, size: int = 12) -> None:
        super().__init__()
        self.seed, self.size = seed, size

    def _set(self, part: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(10 * self.seed + part)
        return TensorDataset(torch.randn(self.size, 1, 8, 8, generator=draw), torch.arange(self.size) % 3)

    def train_dataloader(self) -> Any:
        return DataLoader(self._set(0), 5, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self._set(1), 5)


TASK = """
trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false, default_root_dir: out}
model:
  class_path: ClassificationTask
  init_args:
    num_classes: 3
    network: {class_path: fl_lightning.MLP, init_args: {in_features: 64, num_classes: 3}}
"""
CONFIG = f"""{TASK}data:
  clients:
    hospital_b: {{class_path: client_sites.Images, init_args: {{seed: 1, size: 8}}}}
    hospital_a: {{class_path: client_sites.Images}}
"""
