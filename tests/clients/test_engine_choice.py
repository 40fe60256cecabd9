"""The engine ``auto``: the lean loop where it gives a Trainer's bits, and a Trainer everywhere else, without a stopwatch."""

from typing import Any

import pytest
import torch
from engine_runs import Manual
from federations import Plain, federate, same_bits, weights
from torch import Tensor

from fl_lightning import FederatedOrchestrator, LocalTraining
from fl_lightning.clients.fabric.engine import FabricEngine
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.settings.local_training import Place


class Late(Plain):
    """Asks in the third step of client 1, which has most, for something that only a Trainer has."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2 and self.trainer.num_training_batches == 4:
            assert self.trainer.fit_loop is not None
        return super().training_step(batch, batch_idx)


class Careful(Plain):
    """Would train otherwise if it had no answer."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        try:
            factor = self.trainer.fit_loop.max_epochs
        except Exception:
            factor = 7
        return factor * super().training_step(batch, batch_idx)


def trained(kind: type[Plain], engine: Any, rounds: int = 2) -> tuple[Plain, FederatedOrchestrator]:
    torch.manual_seed(5)
    module = kind()
    run = federate(module, rounds, local=LocalTraining(engine=engine, max_epochs=2))
    return module, next(callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), [(Plain, "fabric"), (Manual, "trainer"), (Late, "trainer"), (Careful, "trainer")])
def test_auto_gives_the_bits_of_a_trainer(kind, engine, caplog):
    expected, _ = trained(kind, "trainer")
    with caplog.at_level("INFO"):
        module, federation = trained(kind, "auto")
    assert same_bits(weights(expected), weights(module))
    assert federation._run.live.pool.client.engine.name == engine
    said = [record.getMessage() for record in caplog.records if "Local training" in record.getMessage()]
    assert said[0].startswith("Local training uses the engine 'trainer': Manual optimizes manually") == (kind is Manual)
    if kind is Late:
        assert said[1].startswith("Local training continues with the engine 'trainer'. Late asks for 'trainer.fit_loop'")


def test_auto_takes_a_trainer_where_equality_has_not_been_tested():
    place = Place(local=LocalTraining(engine="auto"), device=torch.device("mps", 0))
    engine = FabricEngine(ResidentModel(Plain()), place)
    assert engine.name == "trainer"
    assert "'mps'" in engine.reason
