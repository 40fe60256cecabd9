"""What measuring clients' models on the server's set may cost: fewer rounds, fewer examples, other batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from federations import CLASSES, SIZES, Blobs, Consecutive, Plain, every_round, federate, network, same_bits, weights
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy

from fl_lightning import (
    AdaFed,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederationCallback,
    LocalTraining,
    ServerEvaluation,
)
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.data import TensorLoader
from fl_lightning.data.loaders import reduced
from fl_lightning.server.evaluators import Evaluators


class Scores(FederationCallback):
    """Each client's score, and what it is when worked out by hand on the whole server's set."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, float]] = []
        self.by_hand: list[float] = []

    def on_client_end(self, trainer, pl_module, update) -> None:
        net = network()
        torch.nn.utils.vector_to_parameters(update.state, net.parameters())
        x, y = trainer.datamodule.datamodule.val
        self.by_hand.append(float(multiclass_accuracy(net(x), y, CLASSES, average="micro")))
        self.seen.append((update.round_idx, update.client, update.score))


EXACT = ServerEvaluation()


def adafed(rounds: int, evaluation: ServerEvaluation = EXACT, **more: Any) -> tuple[Plain, Scores]:
    torch.manual_seed(1)
    module, scores = Plain(), Scores()
    federate(module, rounds, scores, strategy=AdaFed("val_acc"), server_evaluation=evaluation, **more)
    return module, scores


def test_scores_are_those_of_the_whole_set():
    _, scores = adafed(3)
    assert [score for _, _, score in scores.seen] == pytest.approx(scores.by_hand, abs=1e-6)


def test_between_evaluations_a_client_keeps_its_score():
    _, scores = adafed(5, evaluation=ServerEvaluation(every_n_rounds=2))
    by_round = {(r, client): score for r, client, score in scores.seen}
    hand = dict(zip([(r, client) for r, client, _ in scores.seen], scores.by_hand, strict=True))
    for client in range(len(SIZES)):
        for measured in (0, 2, 4):
            assert by_round[measured, client] == pytest.approx(hand[measured, client], abs=1e-6)
        assert by_round[1, client] == by_round[0, client]
        assert by_round[3, client] == by_round[2, client]


def test_a_client_without_a_score_is_measured_all_the_same():
    _, scores = adafed(6, evaluation=ServerEvaluation(every_n_rounds=100), clients_per_round=1)
    firsts: dict[int, float] = {}
    for (_, client, score), own in zip(scores.seen, scores.by_hand, strict=True):
        assert score == firsts.setdefault(client, pytest.approx(own, abs=1e-6))
    assert len(firsts) > 1


def test_kept_scores_outlive_a_checkpoint(tmp_path):
    evaluation = ServerEvaluation(every_n_rounds=3)
    whole, _ = adafed(3, evaluation=evaluation)
    torch.manual_seed(1)
    settings: Any = {"strategy": AdaFed("val_acc"), "server_evaluation": evaluation, "flags": {"enable_checkpointing": True}}
    federate(Plain(), 1, every_round(tmp_path), **settings)
    resumed = Plain()
    federate(resumed, 3, ckpt_path=str(tmp_path / "last.ckpt"), **settings)
    assert same_bits(weights(whole), weights(resumed))


def test_other_batches_give_the_same_scores():
    (_, plain), (_, large) = adafed(2), adafed(2, evaluation=ServerEvaluation(batch_size=61))
    assert [s for *_, s in plain.seen] == pytest.approx([s for *_, s in large.seen], abs=1e-6)


def test_the_fastest_batch_size_is_found():
    (_, plain), (_, tuned) = adafed(1), adafed(1, evaluation=ServerEvaluation(batch_size="auto"))
    assert [s for *_, s in plain.seen] == pytest.approx([s for *_, s in tuned.seen], abs=1e-6)


def test_evaluation_in_bfloat16_is_close():
    (_, plain), (_, half) = adafed(1), adafed(1, evaluation=ServerEvaluation(precision="bf16-mixed"))
    assert [s for *_, s in plain.seen] == pytest.approx([s for *_, s in half.seen], abs=0.05)


@pytest.mark.parametrize("examples", [40, 0.4])
@pytest.mark.parametrize("kind", ["tensors", "dataset"])
def test_a_part_of_the_set_has_as_many_of_each_class_in_proportion(examples, kind):
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    tensors = torch.arange(100.0).view(-1, 1), labels
    whole = TensorLoader(tensors, 7) if kind == "tensors" else DataLoader(TensorDataset(*tensors), batch_size=7)
    batches = list(reduced(whole, examples, None, 5))
    drawn = torch.cat([x.flatten() for x, _ in batches]).tolist()
    assert Counter(torch.cat([y for _, y in batches]).tolist()) == {0: 20, 1: 12, 2: 8}
    assert len(set(drawn)) == 40
    again = torch.cat([x.flatten() for x, _ in reduced(whole, examples, 13, 5)]).tolist()
    assert again == drawn


def test_a_part_of_the_set_is_what_is_measured():
    _, scores = adafed(1, evaluation=ServerEvaluation(examples=9))
    assert all(round(score * 9) / 9 == pytest.approx(score, abs=1e-6) for *_, score in scores.seen)


class TwoSets(Blobs):
    def val_dataloader(self):
        return [super().val_dataloader(), super().val_dataloader()]


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(DataError, match=r"cannot divide a list\. Let 'val_dataloader' return one DataLoader"):
        reduced(TwoSets().val_dataloader(), 10, None, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_rounds": 0}, "'federation.server_evaluation.every_n_rounds' must be 1 or above"),
        ({"examples": 0}, "'federation.server_evaluation.examples' must be a number of 1 or above, or a share in"),
        ({"examples": 1.5}, "'federation.server_evaluation.examples'"),
        ({"batch_size": 0}, "'federation.server_evaluation.batch_size' must be 1 or above"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ServerEvaluation(**settings)


def test_all_clients_are_trained_whatever_the_balance_counts():
    _, scores = adafed(1, partitioner=Consecutive(SIZES))
    assert sorted(client for _, client, _ in scores.seen) == [0, 1, 2]


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_another_precision_of_evaluation_needs_weights_in_single(precision):
    module = Plain().double() if precision == "64-true" else Plain()
    data = Blobs(dtype=torch.float64) if precision == "64-true" else Blobs()
    with pytest.raises(ConfigurationError, match=rf"models are stored in {precision}\. Remove it"):
        federate(
            module,
            1,
            data=data,
            strategy=AdaFed("val_acc"),
            local=LocalTraining(precision=precision),
            server_evaluation=ServerEvaluation(precision="bf16-mixed"),
        )


def test_tuned_batches_do_not_go_with_a_limit_in_batches():
    with pytest.raises(ConfigurationError, match=r"'trainer\.limit_val_batches' counts batches"):
        adafed(1, evaluation=ServerEvaluation(batch_size="auto"), flags={"limit_val_batches": 2})


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.randn(4), torch.tensor(k % CLASSES)) for k in range(30)])


class Streamed(Blobs):
    def val_dataloader(self):
        return DataLoader(Stream(), batch_size=10)


def test_a_stream_can_be_the_servers_set():
    federate(Plain(), 1, data=Streamed(), strategy=AdaFed("val_acc"))
    data = FederatedDataModule(Streamed(), Consecutive())
    evaluators = Evaluators(ResidentModel(Plain()), data, EXACT, limit_batches=1.0, seed=0)
    assert evaluators.num_server_examples == 0


class Mine(DataLoader):
    """A loader with a way of its own."""


def test_a_loader_of_the_users_own_stays():
    loader = Mine(TensorDataset(torch.ones(4, 2), torch.zeros(4)), batch_size=2, num_workers=1)
    assert reduced(loader, 1.0, None, 0) is loader


def test_a_part_of_a_set_without_classes_is_drawn_at_random():
    targets = TensorDataset(torch.arange(20.0).view(-1, 1), torch.randn(20))
    (batch,) = reduced(DataLoader(targets, batch_size=50), 0.5, None, 3)
    assert len(set(batch[0].flatten().tolist())) == 10
