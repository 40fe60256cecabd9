"""Data that come as loaders or from another package, and several validation sets."""

from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, changed, federate, same_bits, trainer, weights
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    AdaFed,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    IIDPartitioner,
    ServerEvaluation,
)


class Several(Blobs):
    """Two validation sets, the second one with wrong labels."""

    def __init__(self, kind: type = list) -> None:
        super().__init__()
        self.kind = kind

    def val_dataloader(self) -> Any:
        x, y = self.val
        loaders = [DataLoader(TensorDataset(x, labels), 16) for labels in (y, 2 - y)]
        return dict(zip("ab", loaders, strict=True)) if self.kind is dict else loaders


class Both(Plain):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        accuracy = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("acc", accuracy, batch_size=len(batch[1]))


@pytest.mark.parametrize("kind", [list, dict])
def test_several_validation_loaders(kind):
    """AdaFed weighs by the loader that its metric names; the others have columns of their own."""
    scores = []

    class Scores(FederationCallback):
        def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
            scores.append(update.score)

    torch.manual_seed(3)
    strategy = AdaFed("acc/dataloader_idx_1")
    run = federate(Both(), 2, Scores(), data=Several(kind), strategy=strategy)
    assert {"acc/dataloader_idx_0", "acc/dataloader_idx_1"} <= run.callback_metrics.keys()
    assert run.callback_metrics["acc/dataloader_idx_0"] > 0.6
    assert max(scores) < 0.5
    with pytest.raises(
        ConfigurationError, match=r"The metric for models is 'acc'.* It logs: acc/dataloader_idx_0, acc/dataload"
    ):
        federate(Both(), 1, data=Several(kind), strategy=AdaFed("acc"), flags={"num_sanity_val_steps": 0})
    with pytest.raises(DataError, match=r"'federation.server_evaluation' cannot divide a (list|dict)"):
        federate(Both(), 1, data=Several(kind), strategy=strategy, server_evaluation=ServerEvaluation(examples=0.5))


class Subclass(DataLoader[Any]):
    pass


def test_a_subclass_of_dataloader_is_named():
    match = r"Blobs.train_dataloader\(\) returns a Subclass, but clients get a plain torch DataLoader"
    with pytest.warns(UserWarning, match=match):
        federate(Plain(), 1, data=changed("train", Subclass(TensorDataset(*Blobs().train), batch_size=5)))


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

    with pytest.raises(ConfigurationError, match=f"Own, 'data.datamodule', is .*{message}"):
        FederatedDataModule(Own(), IIDPartitioner(2))
    with pytest.raises(ConfigurationError, match=f"Own, the data of client 'a', is .*{message}"):
        FederatedDataModule.from_clients({"a": Own()})
    with pytest.raises(TypeError, match="switch to a single import style"):  # Lightning's own words
        federate(demos.BoringModel(), 1)


def test_loaders_instead_of_a_datamodule():
    found = []
    own = Blobs()
    train, val = DataLoader(TensorDataset(*own.train), batch_size=5, shuffle=True), DataLoader(TensorDataset(*own.val), 16)
    given = FederatedDataModule.from_loaders(train, val, partitioner=Consecutive())
    for data in (FederatedDataModule(Blobs(), Consecutive()), given):
        torch.manual_seed(3)
        module = Plain()
        run = trainer(2, FederatedOrchestrator())
        run.fit(module, data)
        assert "val_acc" in run.callback_metrics
        found.append(weights(module))
    assert same_bits(*found)
