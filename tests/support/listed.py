"""Datasets that are not tensors in memory, and their division among clients."""

from typing import Any

import lightning as L
import torch
from federations import Blobs
from torch.utils.data import DataLoader, Dataset

from fl_lightning import FederatedDataModule, Partitioner


class Listed(Dataset):
    """Examples one by one, as tuples."""

    def __init__(self, inputs, labels):
        self.inputs, self.targets = inputs, labels

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


class AtHand(Blobs):
    def train_dataloader(self) -> Any:
        return DataLoader(Listed(*self.train), batch_size=self.batch_size, shuffle=self.shuffle)


class Users(Dataset):
    """Examples with a user each."""

    def __init__(self, users: list[Any]) -> None:
        self.user_id = users

    def __len__(self) -> int:
        return len(self.user_id)

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index % 3


class OfUsers(L.LightningDataModule):
    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=2)


def split(dataset: Any, partitioner: Partitioner, **more: Any) -> FederatedDataModule:
    data = FederatedDataModule(OfUsers(dataset), partitioner, **more)
    data.setup("fit")
    return data
