"""Callbacks of clients that outlast a turn, and those that do not."""

import copy
from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
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
from plain_training import InOrder

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
    torch.manual_seed(3)
    module = Plain().double()
    alone = copy.deepcopy(module)
    local = LocalTraining(max_epochs=4, precision="64-true", progress="round", callbacks=[make()])
    data = Blobs(23, shuffle=False, dtype=torch.float64)
    federate(module, 1, data=data, partitioner=Consecutive([23]), local=local, flags={"precision": "64-true"})
    trainer(4, make(), precision="64-true").fit(alone, InOrder(data.train))
    assert max(float((one - weights(alone)[name]).abs().max()) for name, one in weights(module).items()) < 1e-15


def test_callbacks_whose_limits_are_those_of_a_turn_are_free():
    found = []
    limits = [EarlyStopping("train_loss", patience=9), SpikeDetection(), Timer("00:01:00:00")]
    for callbacks in ([], limits):
        torch.manual_seed(3)
        module = Plain()
        federate(module, 2, local=LocalTraining(callbacks=callbacks))
        found.append(weights(module))
    assert same_bits(*found)
