"""What a network draws, as a picture at the end of a fit and of a test."""

import io
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
from engine_runs import variant
from federations import Blobs, Plain, trainer
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from PIL import Image
from torch.nn import functional as F
from wandb_file import history

from fl_lightning import (
    DensityCount,
    DomainPartitioner,
    FederatedDataModule,
    FederatedOrchestrator,
    PredictionImages,
    SimulatedCellsDataModule,
    UNet,
)
from fl_lightning.callbacks import prediction_images
from fl_lightning.callbacks.prediction_images import draw_predictions
from fl_lightning.cells import CellSite

SITES = {"west": CellSite(images=6), "east": CellSite(images=9, cells=(1, 4))}


class Draws(LightningModule):
    """From image to image, with dropout and a part that is frozen in evaluation."""

    def __init__(self, readout=None) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(UNet(width=2, depth=1), torch.nn.Dropout(0.5))
        if readout is not None:
            self.readout = readout

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def cells() -> FederatedDataModule:
    base = SimulatedCellsDataModule(SITES, image_size=16, test_images=7, eval_batch_size=5)
    return FederatedDataModule(base, DomainPartitioner())


@pytest.fixture
def drawn(monkeypatch):
    """What is given to the drawing."""
    calls = []
    monkeypatch.setattr(prediction_images, "draw_predictions", lambda *parts: calls.append(parts) or draw_predictions(*parts))
    return calls


@pytest.mark.slow
def test_a_federation_ends_in_a_picture_of_the_servers_model(drawn, tmp_path):
    data, module = cells(), Draws(DensityCount(100.0))
    loggers = [CSVLogger(str(tmp_path), "csv"), WandbLogger(project="p", save_dir=str(tmp_path), offline=True)]
    run = trainer(2, FederatedOrchestrator(), PredictionImages(3), logger=loggers)
    run.fit(module, data)
    images, targets, predictions, (true, predicted) = drawn[0]
    held = data.datamodule._test.tensors
    assert torch.equal(images, held[0][:3] / 255)
    assert torch.equal(targets, held[1][:3])
    with torch.no_grad():
        wanted = module.eval()(held[0][:3] / 255)  # without dropout
    torch.testing.assert_close(predictions, wanted)
    torch.testing.assert_close(true, held[1][:3].sum(dim=(1, 2, 3)) / 100)
    torch.testing.assert_close(predicted, wanted.sum(dim=(1, 2, 3)) / 100)
    folder = Path(loggers[0].log_dir)
    assert Image.open(folder / "val_predictions.png").format == "PNG"
    assert not (folder / "test_predictions.png").exists()
    run.test(module, data)
    assert len(drawn) == 2
    assert Image.open(folder / "test_predictions.png").format == "PNG"
    loggers[1].experiment.finish()
    wandb.teardown()  # its process writes the rest of the file after the run is finished
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rounds = {name: row["round"] for row in history(path) for name in ("val_predictions", "test_predictions") if name in row}
    assert rounds["val_predictions"] == 1
    assert len(rounds) == 2


@pytest.mark.slow
@pytest.mark.parametrize("readout", [None, torch.nn.Flatten(), "a name"])
def test_a_central_run_without_loggers_and_without_a_readout_of_numbers(readout, drawn):
    trainer(1, PredictionImages(), default_root_dir="here").fit(Draws(readout), cells())
    ((images, _, _, counts),) = drawn
    assert len(images) == 4
    assert counts is None
    assert Path("here/val_predictions.png").exists()


def test_the_run_goes_on_as_without_it():
    """Modes of the module's parts, weights, and the random state, also of a module that draws numbers in evaluation."""
    ends = []
    for callbacks in ([], [PredictionImages()]):
        torch.manual_seed(3)
        module = variant(Draws, forward=lambda self, x: self.network(x + torch.rand_like(x)))()
        module.network[1].eval()
        trainer(2, *callbacks).fit(module, cells())
        modes = torch.tensor([part.training for part in module.modules()])
        ends.append((modes, torch.cat([p.flatten() for p in module.parameters()]), torch.get_rng_state()))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


LARGE = variant(
    Draws,
    forward=lambda self, x: self.network(x).repeat(1, 1, 2, 2),
    training_step=lambda self, batch, batch_idx: self(batch[0]).square().mean(),
    validation_step=lambda self, batch, batch_idx: None,
    test_step=lambda self, batch, batch_idx: None,
)


@pytest.mark.parametrize(
    ("module", "data", "why"),
    [
        (Plain, Blobs, r"Plain does not: a batch of inputs and targets must have the shape .* but got \(4, 4\) and"),
        (LARGE, cells, r"Variant does not: predictions have the shape \(4, 1, 32, 32\), targets \(4, 1, 16, 16\)"),
    ],
)
def test_one_warning_for_a_module_that_draws_no_images(module, data, why):
    run, network = trainer(2, PredictionImages()), module()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(network, data())
        run.test(network, data())
    said = [str(w.message) for w in caught if "PredictionImages" in str(w.message)]
    assert len(said) == 1
    assert re.search(why, said[0])
    assert "remove it from 'trainer.callbacks'" in said[0]
    assert not list(Path().rglob("*.png"))


def test_nothing_from_a_trial_run_or_without_validation_and_a_warning_without_matplotlib(monkeypatch):
    trainer(1, PredictionImages(), fast_dev_run=True).fit(Draws(), cells())
    trainer(1, PredictionImages(), limit_val_batches=0).fit(Draws(), cells())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = r"drawing needs matplotlib, which is not installed \(pip install 'fl_lightning\[plots\]'\)"
    with pytest.warns(UserWarning, match=message):
        trainer(1, PredictionImages()).fit(Draws(), cells())
    assert not list(Path().rglob("*.png"))


# ------------------------------------------------------------------ the picture


def pixels(*parts) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(draw_predictions(*parts))).convert("RGB")).astype(int)


@pytest.mark.slow
def test_targets_and_predictions_share_a_scale_from_zero():
    """A prediction like the target looks like it; half of it is paler; below zero is as nothing."""
    image, target = torch.rand(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)
    target[..., 2:6, 2:6] = 4.0
    found = {factor: pixels(image, target, factor * target) for factor in (-1, 0, 0.5, 1)}
    dark = {factor: (picture.sum(axis=2) < 250).sum() for factor, picture in found.items()}
    assert dark[1] > dark[0.5] >= dark[0] > 0
    assert np.array_equal(found[-1], found[0])
    assert not np.array_equal(found[0.5], found[0])
    nothing = torch.zeros(3, 1, 8, 8)
    assert pixels(torch.rand(3, 3, 8, 8), nothing, nothing.bfloat16()).shape[0] > 2 * found[1].shape[0]  # no error, a row each
