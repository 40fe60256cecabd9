"""The round against a loop written by hand, in plain torch, from the formulas."""

import weakref

import lightning as L
import pytest
import torch
from against_hand import assert_follows, clients_of
from by_hand import accuracy, averaged
from federations import SIZES, Blobs, Consecutive, Plain, blobs, federate, trainer
from lightning.pytorch.callbacks import LambdaCallback

from fl_lightning import (
    AdaFed,
    ClassificationTask,
    F1WeightedCrossEntropy,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    LocalTraining,
    Mediators,
    ServerRoute,
)

RULES = {
    "examples": (FedAvg(), lambda score, n: n),
    "uniform": (FedAvg("uniform"), lambda score, n: 1.0),
    "adafed": (AdaFed("val_acc"), lambda score, n: score),
    "adafed power": (AdaFed("val_acc", power=3), lambda score, n: score**3),
    "adafed examples": (AdaFed("val_acc", examples=True), lambda score, n: score * n),
}


@pytest.mark.parametrize(
    ("rule", "batchnorm", "dtype"),
    [*((rule, True, torch.float64) for rule in RULES), ("examples", False, torch.float64), ("adafed", True, torch.float32)],
)
def test_three_rounds_are_those_of_a_hand_written_loop(rule, batchnorm, dtype):
    """FedAvg's loop (McMahan et al. 2017, Algorithm 1) with weights p_k, in order, without shuffling."""
    strategy, weigh = RULES[rule]

    def step(net, world, t):
        clients = clients_of(net, world)
        weights = [weigh(world.on_server(client, accuracy), n) for client, n in zip(clients, SIZES, strict=True)]
        return averaged(net, clients, weights)

    run, _ = assert_follows(dtype, step, batchnorm=batchnorm, strategy=strategy, tolerance=1e-12)
    assert run.global_step == 3


def test_frozen_parameters_stay_where_they_are_under_an_adaptive_server():
    module = Plain()
    module.net[0].weight.requires_grad_(False)
    before = module.net[0].weight.clone()
    federate(module, server_optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
    assert torch.equal(module.net[0].weight, before)


def test_class_weights_belong_to_the_server():
    """They follow 1 / (F1 + 0.1) of the aggregated model, worked here with scikit-learn, and are not averaged.

    The sanity check does not adapt them.
    """
    from sklearn.metrics import f1_score

    L.seed_everything(2, verbose=False)
    adapted, optimizer = [], lambda p: torch.optim.SGD(p, lr=0.05)
    task = ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3), optimizer)
    note = LambdaCallback(on_train_start=lambda trainer, module: adapted.append(module.loss.class_weights.tolist()))
    federate(task, 2, note, strategy=AdaFed(), flags={"num_sanity_val_steps": 2})
    assert adapted == [[1.0, 1.0, 1.0]]
    x, y = blobs(61, 2)
    predicted = task.eval()(x).argmax(1)
    expected = 1 / (f1_score(y, predicted, average=None, labels=[0, 1, 2]) + 0.1)
    torch.testing.assert_close(task.loss.class_weights.double(), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert len(set(task.loss.class_weights.tolist())) > 1


def test_disabled_is_the_centralized_baseline_on_the_union():
    """The same objects without rounds: 40 examples of the three clients, batches of 5, 8 steps an epoch."""
    run = trainer(2, FederatedOrchestrator(enabled=False))
    run.fit(Plain(), FederatedDataModule(Blobs(n=60), Consecutive()))
    assert run.global_step == 16
    assert "federation/clients" not in run.callback_metrics


def test_the_module_is_given_back_untouched():
    module = Plain()
    before = set(vars(module))
    federate(module)
    assert set(vars(module)) - before <= {"_trainer", "_metric_attributes"}
    assert module.automatic_optimization


class Living(FederationCallback):
    """Counts the models of clients that live when the next one begins."""

    def __init__(self):
        self.models, self.living = [], []

    def on_client_start(self, trainer, pl_module, round_idx, client):
        self.living.append(sum(model() is not None for model in self.models))

    def on_client_end(self, trainer, pl_module, update):
        self.models.append(weakref.ref(update.snapshot.vector))


@pytest.mark.parametrize(
    ("route", "living"),
    [(ServerRoute(), 0), (Mediators(2), 1)],
    ids=["each to the server", "in chains"],
)
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_no_model_of_a_client_lives_while_others_train(engine, route, living):
    """Only the next client of its chain needs it."""
    seen = Living()
    federate(Plain(), 2, seen, local=LocalTraining(engine=engine, threads=1), route=route)
    assert len(seen.models) >= 6
    assert max(seen.living) == living
