"""What measuring clients' models on the server's set may cost: fewer rounds, fewer examples, other batches."""

from collections import Counter
from typing import Any

import pytest
import torch
from federations import CLASSES, SIZES, Consecutive, Plain, changed, federate, network
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy

from fl_lightning import AdaFed, FederatedDataModule, FederationCallback, LocalTraining, ServerEvaluation
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.data import TensorLoader
from fl_lightning.data.loaders import reduced
from fl_lightning.server.evaluators import Evaluators
from fl_lightning.settings.local_training import Place


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


def adafed(rounds: int, evaluation: ServerEvaluation, **more: Any) -> Scores:
    torch.manual_seed(1)
    scores = Scores()
    federate(Plain(), rounds, scores, strategy=AdaFed("val_acc"), server_evaluation=evaluation, **more)
    return scores


def test_between_evaluations_a_client_keeps_its_score():
    scores = adafed(5, ServerEvaluation(every_n_rounds=2))
    by_round = {(r, client): score for r, client, score in scores.seen}
    hand = dict(zip([(r, client) for r, client, _ in scores.seen], scores.by_hand, strict=True))
    for client in range(len(SIZES)):
        for measured in (0, 2, 4):
            assert by_round[measured, client] == pytest.approx(hand[measured, client], abs=1e-6)
        assert by_round[1, client] == by_round[0, client]
        assert by_round[3, client] == by_round[2, client]


def test_a_client_without_a_score_is_measured_all_the_same():
    scores = adafed(6, ServerEvaluation(every_n_rounds=100), clients_per_round=1)
    firsts: dict[int, float] = {}
    for (_, client, score), own in zip(scores.seen, scores.by_hand, strict=True):
        assert score == firsts.setdefault(client, pytest.approx(own, abs=1e-6))
    assert len(firsts) > 1


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [({}, 1e-6), ({"batch_size": 61}, 1e-6), ({"precision": "bf16-mixed"}, 0.05)],
    ids=str,
)
def test_scores_are_those_of_the_whole_set(settings, tolerance):
    scores = adafed(2, ServerEvaluation(**settings))
    assert [score for _, _, score in scores.seen] == pytest.approx(scores.by_hand, abs=tolerance)


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
    scores = adafed(1, ServerEvaluation(examples=9))
    assert all(round(score * 9) / 9 == pytest.approx(score, abs=1e-6) for *_, score in scores.seen)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.randn(4), torch.tensor(k % CLASSES)) for k in range(30)])


def test_a_stream_can_be_the_servers_set():
    streamed = changed("val", DataLoader(Stream(), batch_size=10))
    federate(Plain(), 1, data=streamed, strategy=AdaFed("val_acc"))
    data = FederatedDataModule(streamed, Consecutive())
    evaluators = Evaluators(ResidentModel(Plain()), data, ServerEvaluation(), Place(local=LocalTraining()), 1.0, seed=0)
    assert evaluators.num_server_examples == 0


def test_a_part_of_a_set_without_classes_is_drawn_at_random():
    targets = TensorDataset(torch.arange(20.0).view(-1, 1), torch.randn(20))
    (batch,) = reduced(DataLoader(targets, batch_size=50), 0.5, None, 3)
    assert len(set(batch[0].flatten().tolist())) == 10
