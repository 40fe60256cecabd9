"""Parts that are frozen and thawed: what is trained, averaged and counted follows."""

from typing import Any

import pytest
import torch
from federations import Blobs, Plain, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import BaseFinetuning

from fl_lightning import AdaFed, FederationCallback, Krum, LocalOnly, LocalTraining, Scaffold, TopK, TransferLearning

BACKBONE = ["net.0", "net.1"]
HEAD, EVERYTHING = 8 * 3 + 3, 4 * 8 + 8 + 2 * 8 + 8 * 3 + 3
BUFFERS = 2 * 8
"""BatchNorm's running mean and variance."""


class Watch(FederationCallback):
    """The length of what each client sends, the bytes of each round, and the weights after it."""

    def __init__(self) -> None:
        self.lengths: list[set[int]] = []
        self.bytes: list[float] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_round_start(self, *args: Any) -> None:
        self.lengths.append(set())

    def on_client_end(self, run: Any, module: Any, update: Any) -> None:
        self.lengths[-1].add(update.state.numel())

    def on_round_end(self, run: Any, module: Any, round_idx: int) -> None:
        self.bytes.append(float(run.callback_metrics["federation/bytes_up"]))
        self.weights.append(weights(module))


def plain() -> Plain:
    torch.manual_seed(3)
    return Plain(batchnorm=True)


@pytest.mark.parametrize(("engine", "strategy"), [("trainer", AdaFed("val_acc")), ("stacked", Krum(0))])
def test_frozen_for_two_rounds_then_trained(engine, strategy):
    module, watch = plain(), Watch()
    before = weights(module)
    local = LocalTraining(engine=engine, stack_size=2)
    federate(module, 4, watch, TransferLearning(BACKBONE, thaw_after=2), strategy=strategy, local=local)
    assert watch.lengths == [{HEAD}] * 2 + [{EVERYTHING + BUFFERS}] * 2
    counter = 8  # BatchNorm's number of batches, int64
    assert watch.bytes == [3 * 4 * HEAD] * 2 + [3 * (4 * (EVERYTHING + BUFFERS) + counter)] * 2
    for name in ("net.0.weight", "net.1.weight", "net.1.running_mean", "net.1.num_batches_tracked"):
        assert torch.equal(watch.weights[1][name], before[name]), name
        assert not torch.equal(watch.weights[2][name], before[name]), name
    assert not torch.equal(watch.weights[0]["net.3.weight"], before["net.3.weight"])


def test_frozen_for_ever_is_a_module_that_is_frozen_by_hand():
    chosen, by_hand = plain(), plain()
    federate(chosen, 3, TransferLearning(BACKBONE))
    by_hand.net[0].requires_grad_(False)
    by_hand.net[1].requires_grad_(False).eval()
    federate(by_hand, 3)
    assert same_bits(weights(chosen), weights(by_hand))


def test_frozen_after_rounds_of_training():
    module, watch = plain(), Watch()
    federate(module, 4, watch, TransferLearning(BACKBONE, freeze_after=1, thaw_after=3))
    assert watch.lengths == [{EVERYTHING + BUFFERS}, {HEAD}, {HEAD}, {EVERYTHING + BUFFERS}]
    for name in ("net.0.weight", "net.1.running_var"):
        assert torch.equal(watch.weights[0][name], watch.weights[2][name])
        assert not torch.equal(watch.weights[2][name], watch.weights[3][name])
    assert module.net[1].training


def test_without_a_federation():
    module = plain()
    before = weights(module)
    trainer(1, TransferLearning(BACKBONE)).fit(module, Blobs())
    assert torch.equal(module.net[0].weight, before["net.0.weight"])
    assert torch.equal(module.net[1].running_mean, before["net.1.running_mean"])
    thawed = plain()
    trainer(2, TransferLearning(BACKBONE, thaw_after=1)).fit(thawed, Blobs())
    assert not torch.equal(thawed.net[0].weight, before["net.0.weight"])


def test_lightnings_freezing_of_batchnorm_ends_with_the_thaw():
    """BaseFinetuning switches 'track_running_stats' off and on again: the clients' copies follow."""

    class Finetuning(BaseFinetuning):
        def freeze_before_training(self, module: Any) -> None:
            self.freeze([module.net[0], module.net[1]], train_bn=False)

        def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 2:
                self.make_trainable([module.net[0], module.net[1]])

    module, watch = plain(), Watch()
    before = weights(module)
    federate(module, 4, watch, Finetuning())
    assert torch.equal(watch.weights[1]["net.1.running_mean"], before["net.1.running_mean"])
    assert not torch.equal(watch.weights[2]["net.1.running_mean"], before["net.1.running_mean"])


def test_a_second_fit_thaws_what_the_first_has_frozen():
    module, callback = plain(), TransferLearning(BACKBONE, thaw_after=2)
    before = weights(module)
    federate(module, 1, callback)
    assert not module.net[1].training
    federate(module, 3, callback)
    assert module.net[1].training
    assert not torch.equal(module.net[1].running_mean, before["net.1.running_mean"])


@pytest.mark.parametrize("settings", [{"strategy": Scaffold(), "transforms": [TopK(0.5)]}, {"route": LocalOnly("val_acc")}])
def test_vectors_may_be_kept_over_rounds_where_nothing_changes(settings):
    module = plain()
    before = weights(module)
    federate(module, 2, TransferLearning(BACKBONE), **settings)
    assert torch.equal(module.net[0].weight, before["net.0.weight"])
    assert not torch.equal(module.net[3].weight, before["net.3.weight"])
