"""Each datamodule of the package as one client's: the bits of the same rows given as datasets, on every engine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import client_sites
import lightning as L
import numpy as np
import pytest
import torch
from federations import same_bits, trainer, weights
from small_images import paint
from small_tables import lines, write
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

import fl_lightning as fl
from fl_lightning.data import TensorLoader
from fl_lightning.data.input_statistics import input_moments


class Painted(fl.ImageDataModule):
    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.seed = seed

    def load(self) -> Any:
        draw = torch.Generator().manual_seed(self.seed)
        images = torch.randint(0, 256, (18, 1, 6, 6), dtype=torch.uint8, generator=draw)
        return TensorDataset(images[:12], torch.arange(12) % 3), TensorDataset(images[12:], torch.arange(6) % 3)


def write_table(path: Path, seed: int, rows: int = 15) -> str:
    return write(path, "a,b,target", *lines(np.random.default_rng(seed).normal(seed, 2, (rows, 3))))


def write_folder(root: Path, seed: int) -> str:
    for k, name in enumerate(("cat", "dog")):
        paint(root / name, 5 + seed, seed=10 * seed + k, size=6)
    return str(root)


Make = Callable[..., L.LightningDataModule]
OWN: dict[str, Make] = {
    "images": lambda folder, seed: Painted(seed, batch_size=3, mean=[0.4], std=[0.3]),
    "folders": lambda folder, seed: fl.ImageFolderDataModule(write_folder(folder, seed), test_share=0.3, batch_size=3),
    "simulated": lambda folder, seed: fl.SimulatedTasksDataModule(3, 2, examples=(4, 6), seed=seed, batch_size=3),
    "tables": lambda folder, seed: fl.TableDataModule(write_table(folder.with_suffix(".csv"), seed), standardize=False),
}


class Mean(L.LightningModule):
    """Learns the mean of the target from the input, of any shape."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.net = nn.Linear(features, 1)

    def loss(self, batch: Any) -> Tensor:
        inputs, target = batch
        return (self.net(inputs.flatten(1))[:, 0] - target.float().reshape(len(target), -1).mean(1)).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fitted(data: fl.FederatedDataModule, features: int, engine: str = "trainer") -> tuple[Any, float]:
    local = fl.LocalTraining(engine=engine)
    module, run = client_sites.fitted(data, rounds=1, module=partial(Mean, features), local=local)
    return weights(module), float(run.callback_metrics.get("val_loss", torch.nan))


def as_the_model_gets_them(datamodule: Any, loader: Any) -> TensorDataset:
    """By hand: bytes in [0, 1], and normalised by channel."""
    inputs, targets = (torch.stack([torch.as_tensor(one) for one in column]) for column in zip(*loader.dataset, strict=True))
    if isinstance(datamodule, fl.ImageDataModule):
        inputs = inputs.float() / 255
        if datamodule.mean is not None:
            mean, std = (torch.tensor(own).view(-1, 1, 1) for own in (datamodule.mean, datamodule.std))
            inputs = (inputs - mean) / std
    return TensorDataset(inputs, targets)


@pytest.mark.parametrize("name", OWN)
def test_a_datamodule_as_a_client_trains_as_its_rows_given_as_a_dataset(name, tmp_path):
    sites = {site: OWN[name](tmp_path / site, seed) for seed, site in enumerate(("bonn", "oslo"), 1)}
    rows: dict[str, dict[str, TensorDataset]] = {"training": {}, "validation": {}}
    for site, datamodule in sites.items():
        datamodule.setup("fit")
        rows["training"][site] = as_the_model_gets_them(datamodule, datamodule.train_dataloader())
        rows["validation"][site] = as_the_model_gets_them(datamodule, datamodule.val_dataloader())
    features = rows["training"]["bonn"].tensors[0][0].numel()
    for engine in ("trainer", "stacked"):
        size = sites["bonn"].batch_size
        plain = fl.FederatedDataModule.from_clients(rows["training"], val=rows["validation"], batch_size=size)
        expected, value = fitted(plain, features, engine)
        found, own = fitted(fl.FederatedDataModule.from_clients(sites), features, engine)
        assert same_bits(found, expected), engine
        assert own == value, engine
    yaml = fl.FederatedDataModule(clients=sites)  # as the command line passes them
    yaml.setup("fit")
    assert [yaml.num_examples(k) for k in range(2)] == [len(own) for own in rows["training"].values()]
    assert [len(part) for part in yaml.splits.validation] == [len(own) for own in rows["validation"].values()]


@pytest.mark.parametrize("kind", [fl.FederatedDataModule, fl.HDF5Clients, fl.LazyClients])
def test_a_datamodule_of_many_clients_is_no_client(kind):
    source = kind.__new__(kind)
    L.LightningDataModule.__init__(source)
    with pytest.raises(fl.ConfigurationError, match=rf"oslo' must be one client, .* but is '{kind.__name__}'. Give it as"):
        fl.FederatedDataModule.from_clients({"oslo": source})


class Turned(nn.Module):
    """An augmentation that draws nothing."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(-1)


def folders(tmp_path: Path, **settings: Any) -> fl.FederatedDataModule:
    more: Any = {"batch_size": 3, "augmentation": Turned(), **settings}
    clients = {name: fl.ImageFolderDataModule(str(tmp_path / name), **more) for name in ("bonn", "oslo")}
    return fl.FederatedDataModule.from_clients(clients)


@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_images_of_clients_are_augmented_in_training_alone_and_read_from_disk_alike(engine, tmp_path):
    """As one folder of two clients that is divided."""
    for seed, name in enumerate(("bonn", "oslo"), 1):
        write_folder(tmp_path / name, seed)
    root = {name: str(tmp_path / name) for name in ("bonn", "oslo")}
    whole = fl.ImageFolderDataModule(root, batch_size=3, augmentation=Turned())
    expected, _ = fitted(fl.FederatedDataModule(whole, fl.DomainPartitioner()), 108, engine)
    for settings in ({}, {"memory_limit": 0.0}):
        found, _ = fitted(folders(tmp_path, **settings), 108, engine)
        assert same_bits(found, expected)
    data, model = folders(tmp_path, test_share=0.3), Mean(108)
    state, value = fitted(data, 108, engine)
    model.load_state_dict(state)
    clients = data.datamodule.clients
    rows = [as_the_model_gets_them(own, own.val_dataloader()) for own in clients.values()]
    losses = torch.tensor([model.loss(own.tensors).item() for own in rows])
    sizes = torch.tensor([float(len(own)) for own in rows])
    assert value == pytest.approx(float(losses @ sizes / sizes.sum()))
    assert value == pytest.approx(trainer(1).validate(model, data, verbose=False)[0]["val_loss"])
    bonn = as_the_model_gets_them(clients["bonn"], clients["bonn"].train_dataloader()).tensors[0]
    assert input_moments(data, 0).means() == pytest.approx(bonn.double().mean((0, 2, 3)).tolist())


def test_one_transform_of_two_datamodules_is_shared():
    for own in (fl.RandomCropFlip(2), v2.Compose([v2.RandomAffine(9), v2.RandomErasing(0.2)])):
        data = fl.FederatedDataModule.from_clients({name: fl.MNISTDataModule(augmentation=own) for name in "ab"})
        assert callable(vars(data)["on_after_batch_transfer"])


def test_own_sets_that_another_client_lacks_are_named(tmp_path):
    tables = {
        name: fl.TableDataModule(write_table(tmp_path / f"{name}.csv", 1), test_share=share, standardize=False)
        for name, share in (("a", 0.0), ("b", 0.2))
    }
    with pytest.warns(UserWarning, match=r"client 'b' has a 'val_dataloader', but client 'a' has none, so no client's is used"):
        fl.FederatedDataModule.from_clients(tables)


def test_a_loader_of_tensors_is_a_set_of_the_server_or_of_a_client():
    rows = {name: (torch.randn(n, 2), torch.randn(n)) for name, n in (("a", 7), ("b", 9), ("server", 5))}
    clients = {name: TensorDataset(*rows[name]) for name in "ab"}
    for loader, dataset in (
        (TensorLoader(rows["server"], 3), DataLoader(TensorDataset(*rows["server"]), 3)),
        ({name: TensorLoader(rows[name], 4) for name in "ab"}, clients),
    ):
        (one, value), (other, own) = (fitted(fl.FederatedDataModule.from_clients(clients, val=v), 2) for v in (dataset, loader))
        assert same_bits(one, other)
        assert own == value
