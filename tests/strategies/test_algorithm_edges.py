"""Where algorithms meet the rest: fits that go on, clients that diverge, schedules, labels, several loaders."""

import copy
import math
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from against_hand import Updates
from algorithms import Following, outcome, prepare
from by_hand import World
from engine_runs import Manual, scheduled, variant
from federations import SIZES, Blobs, Consecutive, Plain, federate, network, same_bits, trainer, weights
from poisoning import OneBroken
from scipy.special import softmax
from torchmetrics import Accuracy, MeanSquaredError

import fl_lightning as fl


def slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warm start", "fedbuff", *slow("scaffold", "attackers", "local only")])
def test_the_same_orchestrator_starts_anew(name):
    _, data, federation = prepare(name)
    finals = []
    for _ in range(2):
        module = prepare(name)[0]
        trainer(3, federation).fit(module, data)
        finals.append(weights(module))
    assert same_bits(*finals)


def fit_spoilt(strategy: Any) -> tuple[Plain, Any]:
    """The first examples, those of client 0, are not numbers."""
    L.seed_everything(3, verbose=False)
    module = Plain()
    net = copy.deepcopy(module.net)
    federate(module, 1, data=OneBroken(shuffle=False), strategy=strategy)
    return module, net


class Hollow(Plain):
    """Client 0's weights that validation does not read are not numbers."""

    def __init__(self) -> None:
        super().__init__(lr=1e-6)
        self.unread = torch.nn.Parameter(torch.zeros(2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        spoilt = torch.where(batch[0].abs().max() > 1e3, math.nan, 1.0)
        return loss + (self.unread * spoilt).sum()


def test_fedloss_rejects_weights_that_its_loss_does_not_see():
    data = Blobs(shuffle=False)
    data.train[0][: SIZES[0]] = 2e3
    module, federated, updates = Hollow(), fl.FederatedDataModule(data, Consecutive(), client_validation=0.2), Updates()
    with pytest.warns(UserWarning, match="FedLoss rejects the update of client 0 in round 0: its weights are not finite"):
        trainer(1, fl.FederatedOrchestrator(fl.FedLoss()), updates).fit(module, federated)
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
    rejected, *others = updates.rounds[0]
    assert (rejected.weight, rejected.share) == (0, 0)
    assert [update.weight for update in others] == [update.local_score for update in others]


@pytest.mark.parametrize("strategy", [fl.FedMedian(), fl.TrimmedMean(1)])
def test_the_median_and_a_trimmed_mean_outvote_a_client_that_diverged(strategy):
    """numpy puts NaN last, too: what is left of three is then the larger of the two others."""
    name = type(strategy).__name__
    with pytest.warns(UserWarning, match=f"{name} ignores the weights of client 0 in round 0 that are not finite"):
        module, net = fit_spoilt(strategy)
    world = World(torch.float32)
    others = [world.train(net, k)[0] for k in (1, 2)]
    for name, value in module.net.named_parameters():
        larger = torch.maximum(*(dict(other.named_parameters())[name] for other in others))
        torch.testing.assert_close(value, larger, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", [fl.FedAvg(), fl.Krum(0), fl.GeometricMedian(), fl.CosineFilter(), fl.ShapleyValues("val_acc")]
)
def test_other_rules_end_the_run_and_name_who_diverged(strategy):
    with pytest.raises(fl.ClientError, match=r"Client 0 \(of 7 examples\) in round 0: the training loss is nan"):
        fit_spoilt(strategy)


@pytest.mark.parametrize("progress", ["round", "run"])
def test_fednova_counts_steps_in_proportion_to_their_rates(progress):
    updates = Updates()
    warm_up = scheduled(lambda sgd: torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: step / 4), interval="step")
    federate(warm_up(), 1, updates, strategy=fl.FedNova(), local=fl.LocalTraining(max_epochs=2, progress=progress))
    # rates 0, 1, .. tau - 1 quarters of 0.5; in a round, the largest counts as one step, and in a run 0.5
    expected = [sum(range(tau)) / (tau - 1 if progress == "round" else 4) for tau in (4, 8, 6)]
    assert [u.normalizer for u in updates.rounds[0]] == pytest.approx(expected)


def test_fast_dev_run_is_one_batch_per_client_whatever_the_epochs():
    updates = Updates()
    local = fl.LocalTraining(max_epochs=5, partial_work=fl.PartialWork(1.0))
    federate(Plain(), 1, updates, local=local, flags={"fast_dev_run": True})
    assert [u.num_steps for u in updates.rounds[0]] == [1, 1, 1]


def test_a_torchmetrics_metric_over_several_validation_loaders():
    module = variant(validation_step=lambda self, batch, batch_idx, dataloader_idx=0: Plain.validation_step(self, batch, 0))
    data, updates = Blobs(), Updates()
    data.val_dataloader = lambda: [Blobs.val_dataloader(data)] * 2
    federate(module(), 1, updates, data=data, strategy=fl.AdaFed(Accuracy(task="multiclass", num_classes=3)))
    assert all(0 < u.score <= 1 for u in updates.rounds[0])


@pytest.mark.parametrize("strategy", [fl.FedMedian, lambda: fl.ShapleyValues("val_acc")])
def test_the_weights_of_a_mediators_clients_add_up_to_its_own(strategy):
    updates = Updates()
    data = fl.FederatedDataModule(Blobs(), Consecutive((10, 4, 12, 7, 7)))
    trainer(1, fl.FederatedOrchestrator(strategy(), route=fl.Mediators(2)), updates).fit(Plain(), data)
    assert sum(u.share for u in updates.rounds[0]) == pytest.approx(1)
    assert all(math.isfinite(u.weight) for u in updates.rounds[0])
    if strategy is fl.FedMedian:  # each of the three groups weighs 1
        assert sum(u.weight for u in updates.rounds[0]) == pytest.approx(3)


def test_shapley_values_that_are_all_negative_leave_fedavg():
    """Clients at a huge rate make the model worse: what they add is below 0, and examples decide."""
    L.seed_everything(3, verbose=False)
    module = variant(training_step=lambda self, batch, batch_idx: -Plain.training_step(self, batch, batch_idx))(lr=0.05)
    updates = Updates()
    strategy = fl.ShapleyValues("val_loss", "min")
    federate(module, 1, updates, data=Blobs(shuffle=False), strategy=strategy)
    assert max(strategy.values.values()) < 0
    assert [u.weight for u in updates.rounds[0]] == list(SIZES)


def test_focus_and_fedstar_take_torchmetrics():
    updates = Updates()
    federate(Plain(), 1, updates, strategy=fl.Focus(Brier()))
    assert all(u.score > 0 and u.global_score > 0 for u in updates.rounds[0])
    errors = np.array([u.score + u.global_score for u in updates.rounds[0]])
    credibility = 1 - softmax(errors)  # of temperature 1
    assert [u.weight for u in updates.rounds[0]] == pytest.approx(credibility * SIZES)
    run = federate(Plain(), 1, route=fl.FedStar(1, Accuracy(task="multiclass", num_classes=3)))
    assert run.global_step == 1


class Brier(MeanSquaredError):  # noqa: N818 (a score)
    """A loss of classification as a metric."""

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        super().update(preds.softmax(1), torch.nn.functional.one_hot(target, 3).float())


def drawn_network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return network(batchnorm=True)


class Late(Plain):
    """Builds its network when a fit or a validation begins, as modules do whose size depends on the data."""

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__(momentum=momentum)
        del self.net

    def configure_model(self) -> None:
        self.net = drawn_network()


@pytest.mark.parametrize(
    "name", ["focus", *slow("local only", "fedloss", "scaffold", "attackers", "fedstar", "shapley", "fednova")]
)
def test_a_module_that_builds_its_network_late_is_federated_alike(name):
    finals = []
    for late in (False, True):
        module, data, federation = prepare(name)
        module.net = drawn_network()
        module = Late(module.hparams.momentum) if late else module
        trainer(2, federation).fit(module, data)
        finals.append(weights(module.net))
    assert same_bits(*finals)


@pytest.mark.parametrize(("first", "engine", "second"), [(Following, "auto", Plain), (Plain, "auto", Manual)])
def test_a_fit_takes_nothing_from_one_of_another_module(first, engine, second):
    """Neither the names of its moving targets, nor the engine that was chosen for it."""
    used = fl.FederatedOrchestrator(local=fl.LocalTraining(engine=engine))
    trainer(1, used).fit(first(), fl.FederatedDataModule(Blobs(), Consecutive()))
    ends = []
    for federation in (used, fl.FederatedOrchestrator(local=fl.LocalTraining(engine=engine))):
        torch.manual_seed(4)
        module = second()
        trainer(2, federation).fit(module, fl.FederatedDataModule(Blobs(), Consecutive()))
        ends.append(weights(module))
    assert same_bits(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedasync", *slow("attackers", "local only", "clients' parts")])
def test_a_second_fit_goes_on_with_what_clients_kept(name):
    module, data, federation = prepare(name)
    trainer(4, federation).fit(module, data)
    expected = outcome(module, federation)
    module, data, federation = prepare(name)
    run = trainer(2, federation)
    run.fit(module, data)
    run.fit_loop.max_epochs = 4
    run.fit(module, data)
    assert same_bits(outcome(module, federation), expected)


def test_a_fit_takes_nothing_from_a_resume_that_failed(tmp_path):
    """The random state of the checkpoint was loaded, and waits for a first round that never came."""

    class Stops(L.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            raise ZeroDivisionError

    class Draws(L.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            drawn.append(float(torch.rand(())))

    drawn = list[float]()
    run = trainer(1, fl.FederatedOrchestrator())
    run.fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive()))
    run.save_checkpoint(tmp_path / "one.ckpt")
    used = fl.FederatedOrchestrator()
    with pytest.raises(ZeroDivisionError):
        trainer(2, used, Stops()).fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive()), ckpt_path=tmp_path / "one.ckpt")
    for federation in (used, fl.FederatedOrchestrator()):
        torch.manual_seed(4)
        trainer(1, federation, Draws()).fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive()))
    assert drawn[0] == drawn[1]
