"""A federation of four clients learns."""

from __future__ import annotations

import lightning as L
from my_project.data import Moons
from my_project.module import Classifier

from fl_lightning import FedAvg, FederatedDataModule, FederatedOrchestrator, IIDPartitioner, LocalTraining


def test_the_federation_learns() -> None:
    """Five rounds beat a straight line, which gets 0.87."""
    L.seed_everything(0)
    data = FederatedDataModule(Moons(examples=800), IIDPartitioner(num_clients=4))
    federation = FederatedOrchestrator(FedAvg(), LocalTraining(max_epochs=2))
    trainer = L.Trainer(
        max_epochs=5,
        callbacks=[federation],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), data)
    assert trainer.callback_metrics["val_accuracy"] > 0.9
