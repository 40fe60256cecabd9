"""Each datamodule of the package as one client's: the bits of the same rows given as datasets, on every engine."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import same_bits, trainer, weights
from small_images import paint, picture, write_torchvision_sets
from small_tables import lines, write
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

import fl_lightning as fl
import fl_lightning.cells
import fl_lightning.data
from fl_lightning.data import TensorLoader
from fl_lightning.data.input_statistics import input_moments

EVERY = {
    name: kind
    for part in (fl_lightning.cells, fl_lightning.data)
    for name in part.__all__
    if inspect.isclass(kind := getattr(part, name)) and issubclass(kind, L.LightningDataModule)
}
"""Also a datamodule that is exported some day."""
MANY = {name for name, kind in EVERY.items() if issubclass(kind, fl.LazyClients | fl.FederatedDataModule)}
"""Datamodules that hold many clients."""


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


def write_cells(root: Path, seed: int) -> str:
    for k in range(8):
        picture(root / f"{k}.png", 8, 8, 10 * seed + k)
        write(root / f"{k}.csv", "x,y", f"{k % 8},3")
    return str(root)


def write_folder(root: Path, seed: int) -> str:
    for k, name in enumerate(("cat", "dog")):
        paint(root / name, 5 + seed, seed=10 * seed + k, size=6)
    return str(root)


Make = Callable[..., L.LightningDataModule]
OWN: dict[str, Make] = {
    "CellFolderDataModule": lambda folder, seed, _: fl.CellFolderDataModule(write_cells(folder, seed), batch_size=3),
    "ImageDataModule": lambda folder, seed, _: Painted(seed, batch_size=3, mean=[0.4], std=[0.3]),
    "ImageFolderDataModule": lambda folder, seed, _: fl.ImageFolderDataModule(
        write_folder(folder, seed), test_share=0.3, batch_size=3
    ),
    "SimulatedCellsDataModule": lambda folder, seed, _: fl.SimulatedCellsDataModule(
        {"here": fl_lightning.cells.CellSite(images=7)}, image_size=8, test_images=2, seed=seed, batch_size=3
    ),
    "SimulatedTasksDataModule": lambda folder, seed, _: fl.SimulatedTasksDataModule(
        3, 2, examples=(4, 6), test_examples=6, seed=seed, batch_size=3
    ),
    "TableDataModule": lambda folder, seed, _: fl.TableDataModule(
        write_table(folder.with_suffix(".csv"), seed), batch_size=3, standardize=False
    ),
    "MNISTDataModule": lambda folder, seed, monkeypatch: fl.MNISTDataModule(
        write_torchvision_sets(folder, monkeypatch, seed), batch_size=5
    ),
    "TorchvisionDataModule": lambda folder, seed, monkeypatch: fl.TorchvisionDataModule(
        "USPS", write_torchvision_sets(folder, monkeypatch, seed), batch_size=5
    ),
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


def fitted(data: fl.FederatedDataModule, features: int, engine: str = "trainer", **local: Any) -> tuple[Any, float]:
    torch.manual_seed(3)
    module = Mean(features)
    run = trainer(1, fl.FederatedOrchestrator(local=fl.LocalTraining(engine=engine, **local)))
    run.fit(module, data)
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


@pytest.mark.parametrize("name", sorted(EVERY.keys() - MANY))
def test_a_datamodule_as_a_client_trains_as_its_rows_given_as_a_dataset(name, tmp_path, monkeypatch):
    make = OWN[name]

    def clients() -> dict[str, Any]:
        return {site: make(tmp_path / site, seed, monkeypatch) for seed, site in enumerate(("bonn", "oslo"), 1)}

    sites = clients()
    rows: dict[str, dict[str, TensorDataset]] = {"training": {}, "validation": {}}
    for site, datamodule in sites.items():
        datamodule.setup("fit")
        rows["training"][site] = as_the_model_gets_them(datamodule, datamodule.train_dataloader())
        rows["validation"][site] = as_the_model_gets_them(datamodule, datamodule.val_dataloader())
    features = rows["training"]["bonn"].tensors[0][0].numel()
    for engine in ("trainer", "stacked"):
        plain = fl.FederatedDataModule.from_clients(
            rows["training"], val=rows["validation"], batch_size=next(iter(sites.values())).batch_size
        )
        expected, value = fitted(plain, features, engine)
        found, own = fitted(fl.FederatedDataModule.from_clients(sites), features, engine)
        assert same_bits(found, expected), engine
        assert own == value, engine
    yaml = fl.FederatedDataModule(clients=sites)  # as the command line passes them
    yaml.setup("fit")
    assert [yaml.num_examples(k) for k in range(2)] == [len(own) for own in rows["training"].values()]
    assert [len(part) for part in yaml.splits.validation] == [len(own) for own in rows["validation"].values()]


@pytest.mark.parametrize("name", sorted(MANY))
def test_a_datamodule_of_many_clients_is_no_client(name):
    source = EVERY[name].__new__(EVERY[name])
    L.LightningDataModule.__init__(source)
    with pytest.raises(fl.ConfigurationError, match=rf"'data.clients.oslo' must be one client, .* but is '{name}'. Give it as"):
        fl.FederatedDataModule.from_clients({"oslo": source})


def folders(tmp_path: Path, augmentation: Any, **settings: Any) -> dict[str, fl.ImageFolderDataModule]:
    return {
        name: fl.ImageFolderDataModule(str(tmp_path / name), batch_size=3, augmentation=augmentation, **settings)
        for name in ("bonn", "oslo")
    }


class Turned(nn.Module):
    """An augmentation that draws nothing."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(-1)


@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_images_of_clients_are_augmented_in_training_alone_and_read_from_disk_alike(engine, tmp_path):
    """As one folder of two clients that is divided."""
    for seed, name in enumerate(("bonn", "oslo"), 1):
        write_folder(tmp_path / name, seed)
    root = {name: str(tmp_path / name) for name in ("bonn", "oslo")}
    whole = fl.ImageFolderDataModule(root, batch_size=3, augmentation=Turned())
    expected, _ = fitted(fl.FederatedDataModule(whole, fl.DomainPartitioner()), 108, engine)
    for settings in ({}, {"memory_limit": 0.0}):
        found, _ = fitted(fl.FederatedDataModule.from_clients(folders(tmp_path, Turned(), **settings)), 108, engine)
        assert same_bits(found, expected)
    data, model = fl.FederatedDataModule.from_clients(folders(tmp_path, Turned(), test_share=0.3)), Mean(108)
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


def test_tables_of_three_hospitals_in_yaml(tmp_path, fl):
    """The first thing that they would write; a fifth of each one's rows is its own test set."""
    for seed, name in enumerate(("bonn", "lund", "oslo")):
        write_table(tmp_path / f"{name}.csv", seed, 10 + 5 * seed)
    hospitals = "\n".join(
        f"    {name}: {{class_path: TableDataModule, init_args: {{path: {tmp_path / name}.csv, standardize: false}}}}"
        for name in ("bonn", "lund", "oslo")
    )
    network = "{class_path: fl_lightning.MLP, init_args: {in_features: 2, num_classes: 1}}"
    Path("own.yaml").write_text(
        "trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false, default_root_dir: out, logger: false}\n"
        "best_checkpoint: {monitor: val_loss}\n"
        f"model: {{class_path: RegressionTask, init_args: {{network: {network}}}}}\ndata:\n  clients:\n{hospitals}\n"
    )
    status, text = fl("fit", "--config", "own.yaml")
    assert status == 0, text
    for name, rows in (("bonn", 10), ("lund", 15), ("oslo", 20)):
        assert re.search(rf"{name} +{rows * 4 // 5} +{rows // 5} +{rows // 5}\b", text)


def test_one_transform_of_two_datamodules_is_shared():
    for own in (fl.RandomCropFlip(2), v2.Compose([v2.RandomAffine(9), v2.RandomErasing(0.2)])):
        data = fl.FederatedDataModule.from_clients({name: fl.MNISTDataModule(augmentation=own) for name in "ab"})
        assert callable(vars(data)["on_after_batch_transfer"])


FILLED = """\
fields:
  - {name: age, type: number, missing: mean}
  - {name: sex, type: string, constraints: {enum: [f, m]}, missing: most_frequent}
  - {name: target, type: number}
target: target
"""


def test_the_schema_of_clients_tables_fills_in_what_is_missing(tmp_path):
    """As for one table that is divided: an age without a value is the mean, a sex without one the most frequent."""
    (tmp_path / "schema.yaml").write_text(FILLED)
    for name, rows in (("a", ("30,f,1", ",m,2", "40,,3", "50,m,1")), ("b", ("60,m,0", "70,m,2", ",,1"))):
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,target", *rows]) + "\n")
    shared: dict[str, Any] = {"schema": str(tmp_path / "schema.yaml"), "standardize": False, "batch_size": 2, "test_share": 0.0}
    paths = {name: str(tmp_path / f"{name}.csv") for name in "ab"}

    def fit(data: fl.FederatedDataModule) -> Any:
        torch.manual_seed(3)
        module = Mean(3)
        module.net = fl.Standardized(module.net, 3)
        trainer(1, fl.FederatedOrchestrator()).fit(module, data)
        return weights(module)

    found = fit(fl.FederatedDataModule.from_clients({name: fl.TableDataModule(path, **shared) for name, path in paths.items()}))
    assert same_bits(found, fit(fl.FederatedDataModule(fl.TableDataModule(paths, **shared), fl.DomainPartitioner())))
    assert float(found["net.mean"][0]) == pytest.approx(50)


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
