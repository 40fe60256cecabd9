"""Tools of the Trainer that act on steps, and data that come as loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, blobs, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator, IIDPartitioner

REFUSED = {
    "BatchSizeFinder tunes plain training": lambda: BatchSizeFinder(),
    "LearningRateFinder tunes plain training": lambda: LearningRateFinder(),
    "GradientAccumulationScheduler would accumulate rounds": lambda: GradientAccumulationScheduler({1: 2}),
    "ModelPruning would prune the server's weights": lambda: ModelPruning("l1_unstructured", amount=0.5),
    "StochasticWeightAveraging updates BatchNorm's statistics": lambda: StochasticWeightAveraging(0.1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_callbacks_that_act_on_steps(message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(batchnorm=True), 2, REFUSED[message]())


def test_validation_inside_a_round():
    with pytest.raises(ConfigurationError, match=r"'trainer.val_check_interval' is 3, but a federation validates between"):
        federate(Plain(), 2, flags={"val_check_interval": 3})


def test_without_a_federation_the_tools_are_free():
    run = trainer(2, FederatedOrchestrator(enabled=False), GradientAccumulationScheduler({1: 2}))
    run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    assert run.accumulate_grad_batches == 2


def loader(seed: int, n: int, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*blobs(n, seed)), **settings)


def test_loaders_instead_of_a_datamodule():
    found = []
    given = FederatedDataModule.from_loaders(
        loader(1, 40, batch_size=5, shuffle=True), loader(2, 61, batch_size=16), partitioner=Consecutive()
    )
    for data in (FederatedDataModule(Blobs(), Consecutive()), given):
        torch.manual_seed(3)
        module = Plain()
        run = trainer(2, FederatedOrchestrator())
        run.fit(module, data)
        assert "val_acc" in run.callback_metrics
        found.append(weights(module))
    assert same_bits(*found)


def test_what_to_write_for_loaders():
    with pytest.raises(ConfigurationError, match=r"FederatedDataModule.from_loaders\(train_loader, val_loader, part"):
        trainer(1, FederatedOrchestrator()).fit(Plain(), loader(1, 40, batch_size=5), loader(2, 61, batch_size=16))
    with pytest.raises(
        ConfigurationError, match=r"is a torch.utils.data.dataloader.DataLoader. Write FederatedDataModule.from_l"
    ):
        FederatedDataModule(loader(1, 40), IIDPartitioner(2))


class Subclass(DataLoader[Any]):
    pass


def test_a_subclass_of_dataloader_is_named():
    class Data(Blobs):
        def train_dataloader(self) -> Any:
            return Subclass(TensorDataset(*self.train), batch_size=5)

    with pytest.warns(
        UserWarning, match=r"Data.train_dataloader\(\) returns a Subclass, but clients get a plain torch DataLoader"
    ):
        federate(Plain(), 1, data=Data())


def test_the_other_package():
    """Its classes have the same names, but are not Lightning's: lightly and others import them."""
    other = pytest.importorskip("pytorch_lightning")
    demos = pytest.importorskip("pytorch_lightning.demos.boring_classes")
    flags = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    message = "import from 'lightning.pytorch' instead of 'pytorch_lightning'"
    for given in ({"datamodule": FederatedDataModule(Blobs(), Consecutive())}, {}):
        run = other.Trainer(max_epochs=1, callbacks=[FederatedOrchestrator()], **flags)
        with pytest.raises(ConfigurationError, match=message):
            run.fit(demos.BoringModel(), **given)

    class Own(demos.BoringDataModule):
        pass

    with pytest.raises(ConfigurationError, match=f"is a test_outer_tools.*Own. .*{message}"):
        FederatedDataModule(Own(), IIDPartitioner(2))
    with pytest.raises(ConfigurationError, match=f"The data of client 'a' are a Own. .*{message}"):
        FederatedDataModule.from_clients({"a": Own()})
    with pytest.raises(TypeError, match="switch to a single import style"):  # Lightning's own words
        federate(demos.BoringModel(), 1)
