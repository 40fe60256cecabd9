"""Callbacks of clients that outlast a turn, and those that do not."""

from typing import Any

import pytest
from engine_runs import fitted
from federations import Plain, federate, same_bits, weights
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from plain_training import distance_from_plain

from fl_lightning import ConfigurationError, LocalTraining

LASTING: dict[str, Any] = {
    "StochasticWeightAveraging, which keeps a state .* .'state_dict'.": lambda: StochasticWeightAveraging(
        0.1, swa_epoch_start=1
    ),
    "WeightAveraging, which keeps a state .* Put it among the federation's own callbacks": WeightAveraging,
    "ModelPruning, which keeps a state .* .'on_save_checkpoint'.": lambda: ModelPruning("l1_unstructured", amount=0.3),
    "GradientAccumulationScheduler, which changes": lambda: GradientAccumulationScheduler({0: 1, 2: 2}),
    "LambdaCallback, which keeps a state .* .'on_save_checkpoint'.": lambda: LambdaCallback(on_save_checkpoint=print),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LASTING)
def test_callbacks_that_outlast_a_turn_act_only_where_each_turn_is_a_training(what):
    """Elsewhere they would begin anew in each turn: average, prune or count a part. Within one it is as in plain training."""
    make = LASTING[what]
    said = f"^'federation.local.callbacks' contains {what}.* set 'federation.local.progress' to 'round'"
    with pytest.raises(ConfigurationError, match=said):
        federate(Plain(), 1, local=LocalTraining(callbacks=[make()]))
    settings = {"progress": "round", "optimizer_state": "fresh", "callbacks": [make()]}
    assert distance_from_plain(Plain, rounds=1, epochs=4, **settings) < 1e-15


def test_callbacks_whose_limits_are_those_of_a_turn_are_free():
    limits = [EarlyStopping("train_loss", patience=9), SpikeDetection(), Timer("00:01:00:00")]
    found = [fitted(Plain, local=LocalTraining(callbacks=callbacks)) for callbacks in ([], limits)]
    assert same_bits(*map(weights, found))
