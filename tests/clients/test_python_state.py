"""Attributes of a module do not leak from client to client."""

import enum
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from against_hand import fit
from engine_runs import ONE_ENOUGH, built, variant
from federations import Blobs, Consecutive, Plain, federate, same_bits, weights
from plain_training import distance_from_plain
from torch import Tensor

from fl_lightning import APFL, ConfigurationError, Ditto, LocalOnly, LocalTraining
from fl_lightning.clients.module_state import PythonState

SEEN: list[Any] = []


class Box:
    """An object of the user's."""


class Remembering(Plain):
    """Its loss depends on everything that it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.note, self.history, self.running = 0, "", [], torch.zeros(1)
        self.array, self.nested, self.box = np.zeros(2), {"last": [0.0]}, None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        SEEN.append((self.trainer.num_training_batches, self.count, len(self.note), len(self.history), hasattr(self, "late")))
        loss = super().training_step(batch, batch_idx)
        scale = 1 + self.count / 100 + len(self.history) / 50 + float(self.running) + self.array.sum() + self.nested["last"][0]
        self.count += 1
        self.note += "x"
        self.history.append(self.count)
        self.running += 0.01
        self.array[0] += 0.01
        self.nested["last"][0] += 0.01
        self.box = self.box or Box()
        self.late = [1]
        return loss * scale


def test_numbers_and_texts_continue_for_each_client_and_the_rest_starts_anew():
    """Clients of 2, 4 and 3 batches, 2 rounds: each continues its own count, and none sees another's lists."""
    SEEN.clear()
    changed = "Training changed 'history', 'running', 'array', 'nested', 'box', 'late' of Remembering"
    with pytest.warns(UserWarning, match=changed):
        federate(Remembering(), 2, local=LocalTraining())
    expected = []
    for round_idx in range(2):
        for batches in (4, 3, 2):  # longest first
            counted = [(batches, batches * round_idx + s, batches * round_idx + s, s, s > 0) for s in range(batches)]
            expected += counted
    assert sorted(SEEN) == sorted(expected)


def test_a_layer_that_has_been_as_it_was_for_many_turns_may_change():
    """Layers whose attributes are the same objects as before are skipped, but only these."""
    module = Plain()
    layer = module.net[0]
    state = PythonState(module)
    for _ in range(3):
        state.begin(0, {})
        assert state.end() == {}
    layer.in_features, layer.name = 99, "new"  # one replaced, one added
    assert state.end() == {"net.0.in_features": 99, "net.0.name": "new"}
    state.begin(0, {})
    assert layer.in_features == 4
    assert not hasattr(layer, "name")
    del layer.out_features
    state.begin(0, {"net.0.in_features": 7})
    assert (layer.in_features, layer.out_features) == (7, 8)
    assert state.end() == {"net.0.in_features": 7}
    module.net[1] = torch.nn.Softplus(beta=3)
    assert state.end() == {"net.0.in_features": 7, "net.1.beta": 3.0, "net.1.threshold": 20.0}


class Mood(enum.IntEnum):
    CALM = 1
    WILD = 2


class Keeping(Plain):
    """Its loss depends on a count, a queue as MoCo's, a list, and a mean of NumPy's."""

    client_state = ("queue", "seen")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(6))
        self.seen = [0]
        self.steps, self.best = 0, 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        x, y = batch
        scale = 1 + self.queue.abs().mean() + len(self.seen) / 10 + self.steps / 20 + float(self.best)
        self.queue = torch.cat([x[:1, 0], self.queue])[:6]
        self.seen.append(len(y))
        self.best = np.mean([self.best, 0.3])
        return super().training_step(batch, batch_idx) * scale


@pytest.mark.parametrize("engine", ONE_ENOUGH)
def test_one_client_is_plain_training(engine):
    assert distance_from_plain(Keeping, engine, without=("queue",)) < 1e-12  # the server's own queue stays as it was


@pytest.mark.parametrize("value", [type("Metres", (float,), {})(1.0), np.float32(1.0), Mood.CALM], ids=repr)
def test_what_no_file_holds_starts_anew_and_cannot_be_named(value):
    """Reading it would need its class's code."""
    seen = []

    def change(self: Any, batch: Any, batch_idx: int) -> None:
        seen.append(self.value == value)
        self.value = Mood.WILD if value is Mood.CALM else type(value)(2.0)

    make = variant(on_train_batch_start=change)
    with pytest.warns(UserWarning, match=r"Training changed 'value' of Variant, which every client's turn finds as it was"):
        federate(variant(make, value=value)(), 2, local=LocalTraining())
    assert seen.count(True) == 6  # once in each turn
    with pytest.raises(ConfigurationError, match=f"names 'value', which holds a {type(value).__name__}, but clients keep only"):
        federate(variant(make, value=value, client_state=("value",))(), 1, local=LocalTraining())


class Slowing(Keeping):
    """Momentum, and a rate that follows the losses."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return [optimizer], [{"scheduler": plateau, "monitor": "train_loss_epoch"}]


def decaying(self: Any) -> Any:
    """Return an optimizer with weights that decay, at a rate that falls."""
    optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, weight_decay=0.3)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "make"),  # APFL's models share a schedule, which follows the first one's losses
    [(Ditto(0.0), Slowing), (APFL(1.0), Remembering), (APFL(1.0), variant(configure_optimizers=decaying))],
)
def test_a_second_model_that_nothing_ties_to_the_first_is_training_alone(strategy, make):
    """Oracle: LocalOnly. The second model has counts, queues, momentum, rates and decay of its own, as the first one has."""
    local, found = LocalTraining(max_epochs=2, optimizer_state="kept"), []
    for settings in ({"strategy": strategy}, {"route": LocalOnly("val_acc")}):
        torch.manual_seed(3)
        _, federation, _ = fit(module=make().double(), local=local, **settings)
        found.append([federation._run.memory.last_model(k) for k in range(3)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.vector, other.vector, rtol=0, atol=1e-12)
        assert torch.equal(one.counters, other.counters)


class Drawing(Plain):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = {}
        self.numpy_rng, self.old_rng, self.python_rng = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
        self.torch_rng, self.same_rng = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        drawn = self.numpy_rng.random(), self.old_rng.rand(), self.python_rng.random()
        drawn = (*drawn, *(float(torch.rand((), generator=g)) for g in (self.torch_rng, self.same_rng)))
        SEEN.append((self.trainer.num_training_batches, self.global_step, *drawn))
        return super().training_step(batch, batch_idx) * (1 + sum(drawn))


def test_generators_draw_by_round_and_client():
    """Neither the order of clients nor who else takes part matters, and no two generators draw the same numbers."""
    found = []
    for sizes in ((7, 20, 13), (20, 7, 13)):
        SEEN.clear()
        federate(Drawing(), 2, data=Blobs(40, shuffle=False), partitioner=Consecutive(sizes), local=LocalTraining())
        found.append({entry[:2]: entry[2:] for entry in SEEN})
    assert {k: v for k, v in found[0].items() if k[0] == 3} == {k: v for k, v in found[1].items() if k[0] == 3}
    values = [number for draws in found[0].values() for number in draws]
    assert len(set(values)) == len(values)


def test_outputs_with_a_history_are_copied():
    """As some modules for self-supervised learning keep them."""

    def encode(self: Any, batch: Any, batch_idx: int) -> Tensor:
        self.encoded = self.net(batch[0])
        return self.encoded.square().mean()

    projecting = built(lambda self: setattr(self, "encoded", self.net(torch.zeros(2, 4))), training_step=encode)
    assert federate(projecting(), 2).global_step == 2


class Anchored(Plain):
    """Stays near the weights of the turn's start, as FedProx does, and counts the batches of a turn."""

    def on_train_start(self) -> None:
        self.anchors = [p.detach().clone() for p in self.parameters()]
        self.batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batches += 1
        SEEN.append((self.trainer.num_training_batches, self.batches))
        distance = sum((p - anchor).square().sum() for p, anchor in zip(self.parameters(), self.anchors, strict=True))
        return super().training_step(batch, batch_idx) + distance


def test_what_every_turn_sets_again_is_not_warned_of(recwarn):
    found = []
    for make in (variant(Anchored, turn_state=("anchors", "batches")), Anchored):
        SEEN.clear()
        torch.manual_seed(1)
        module = make()
        federate(module, 2, local=LocalTraining())
        assert sorted(SEEN) == sorted((batches, s + 1) for batches in (4, 3, 2) for s in range(batches) for _ in range(2))
        told = [str(w.message) for w in recwarn if "which every client's turn" in str(w.message)]
        found.append((told, weights(module)))
        recwarn.clear()
    (silent, named), (warned, unnamed) = found
    assert silent == []
    assert len(warned) == 1
    assert warned[0].endswith("If every turn sets it again, for example in 'on_train_start', write turn_state = ('anchors',).")
    assert same_bits(named, unnamed)


def test_what_cannot_be_copied_is_shared_and_named():
    locking = built(lambda self: setattr(self, "lock", threading.Lock()), on_train_start=lambda self: self.lock.acquire(False))
    with pytest.warns(UserWarning, match=r"'lock' of Variant cannot be copied.*so all clients share it"):
        assert federate(locking(), 1).global_step == 1
