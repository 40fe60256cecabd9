"""The round against a loop written by hand, in plain torch, from the formulas."""

from __future__ import annotations

import copy

import lightning as L
import pytest
import torch
from by_hand import World, averaged
from federations import SIZES, Blobs, Consecutive, Plain, blobs, federate, weights
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import (
    AdaFed,
    ClassificationTask,
    F1WeightedCrossEntropy,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    LocalTraining,
)

ROUNDS, EPOCHS, LR, B = 3, 2, 0.1, 5


def by_hand(net: torch.nn.Module, weigh, dtype: torch.dtype, mu: float = 0.0) -> dict[str, Tensor]:
    """FedAvg's loop (McMahan et al. 2017, Algorithm 1) with weights p_k, in order, without shuffling."""
    x, y = blobs(sum(SIZES), 1, dtype)
    parts = list(torch.arange(sum(SIZES)).split(list(SIZES)))
    for _ in range(ROUNDS):
        states, p = [], []
        for indices in parts:
            client = copy.deepcopy(net)
            for _ in range(EPOCHS):
                for batch in indices.split(B):
                    loss = F.cross_entropy(client(x[batch]), y[batch])
                    for now, then in zip(client.parameters(), net.parameters(), strict=True):
                        loss = loss + mu / 2 * (now - then.detach()).pow(2).sum()
                    client.zero_grad()
                    loss.backward()
                    with torch.no_grad():
                        for parameter in client.parameters():
                            parameter -= LR * parameter.grad
            states.append(client.state_dict())
            p.append(weigh(client, len(indices)))
        merged = {}
        for name, now in net.state_dict().items():
            stacked = torch.stack([state[name].double() for state in states])
            if now.is_floating_point():
                merged[name] = (torch.tensor(p, dtype=torch.float64) @ stacked.flatten(1) / sum(p)).view_as(now).to(dtype)
            else:
                merged[name] = stacked.max(dim=0).values.to(now.dtype)
        net.load_state_dict(merged)
    return weights(net)


def accuracy(client: torch.nn.Module, dtype: torch.dtype) -> float:
    x, y = blobs(61, 2, dtype)
    client.eval()
    score = (client(x).argmax(1) == y).float().mean().item()  # torchmetrics, too, divides in float32
    client.train()
    return score


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("rule", ["examples", "uniform", "adafed", "adafed power", "adafed examples"])
def test_three_rounds_are_those_of_a_hand_written_loop(rule, batchnorm, dtype):
    strategies = {
        "examples": (FedAvg(), lambda client, n: n),
        "uniform": (FedAvg("uniform"), lambda client, n: 1.0),
        "adafed": (AdaFed("val_acc"), lambda client, n: accuracy(client, dtype)),
        "adafed power": (AdaFed("val_acc", power=3), lambda client, n: accuracy(client, dtype) ** 3),
        "adafed examples": (AdaFed("val_acc", examples=True), lambda client, n: accuracy(client, dtype) * n),
    }
    strategy, weigh = strategies[rule]
    L.seed_everything(3, verbose=False)
    module = Plain(lr=LR, batchnorm=batchnorm).to(dtype)
    expected = by_hand(copy.deepcopy(module.net), weigh, dtype)
    precision = "64-true" if dtype == torch.float64 else "32-true"
    data = Blobs(shuffle=False, dtype=dtype)
    run = federate(module, ROUNDS, data=data, strategy=strategy, flags={"precision": precision})
    assert run.global_step == ROUNDS
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for name, value in expected.items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=tolerance, atol=tolerance)


def test_integer_buffers_stay_integers():
    module = Plain(batchnorm=True)
    federate(module)
    # Client 1 holds 20 examples: 4 batches x 2 epochs x 3 rounds, the largest count of the cohort each round.
    assert module.net[1].num_batches_tracked.item() == 24
    assert module.net[1].num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("clip", [None, 0.05])
def test_proximal_term_of_the_callback_is_the_term_in_the_loss(clip):
    """FedProx for a module whose loss we don't own, against the same term written into a loss; also when clipped."""
    if clip is None:
        L.seed_everything(5, verbose=False)
        module = Plain(lr=LR)
        expected = by_hand(copy.deepcopy(module.net), lambda client, n: n, torch.float32, mu=0.7)
        federate(module, ROUNDS, data=Blobs(shuffle=False), local=LocalTraining(max_epochs=EPOCHS, proximal_mu=0.7))
        for name, value in expected.items():
            torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        return

    class ProximalInTheLoss(Plain):
        def on_train_start(self):
            self.then = [p.detach().clone() for p in self.parameters()]

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            pairs = zip(self.parameters(), self.then, strict=True)
            return loss + 0.7 / 2 * sum((now - then).pow(2).sum() for now, then in pairs)

    results = []
    for cls, mu in ((ProximalInTheLoss, 0.0), (Plain, 0.7)):
        L.seed_everything(5, verbose=False)
        module = cls(lr=LR)
        federate(module, ROUNDS, local=LocalTraining(max_epochs=EPOCHS, proximal_mu=mu, gradient_clip_val=clip))
        results.append(weights(module.net))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


def test_mu_zero_is_fedavg():
    """The term of FedProx vanishes: three rounds of FedAvg by hand."""
    L.seed_everything(5, verbose=False)
    module, world = Plain(), World(torch.float32)
    net = copy.deepcopy(module.net)
    federate(module, 3, data=Blobs(shuffle=False), local=LocalTraining(max_epochs=2, proximal_mu=0.0))
    for _ in range(3):
        net = averaged(net, [world.train(net, k)[0] for k in range(3)], world.sizes)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=5e-6, atol=5e-6)


def test_server_momentum_is_fedavgm():
    """v <- beta v + D, w <- w - v, first round v = D (Hsu et al. 2019), D taken from one plain round each."""
    beta = 0.9

    def one_round(module: Plain) -> dict[str, Tensor]:
        copy_ = copy.deepcopy(module)
        federate(copy_, 1, data=Blobs(shuffle=False))
        return weights(copy_.net)

    L.seed_everything(1, verbose=False)
    module = Plain()
    by_formula = copy.deepcopy(module)
    velocity = {name: torch.zeros_like(value) for name, value in by_formula.net.state_dict().items()}
    for _ in range(3):
        averaged, now = one_round(by_formula), weights(by_formula.net)
        velocity = {name: beta * velocity[name] + now[name] - averaged[name] for name in now}
        by_formula.net.load_state_dict({name: now[name] - velocity[name] for name in now})
    optimizer = lambda p: torch.optim.SGD(p, lr=1.0, momentum=beta)  # noqa: E731
    federate(module, 3, data=Blobs(shuffle=False), server_optimizer=optimizer)
    for name, value in by_formula.net.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay_where_they_are_under_an_adaptive_server():
    module = Plain()
    module.net[0].weight.requires_grad_(False)
    before = module.net[0].weight.clone()
    federate(module, server_optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
    assert torch.equal(module.net[0].weight, before)


def test_class_weights_belong_to_the_server():
    """They follow 1 / (F1 + 0.1) of the aggregated model, worked here with scikit-learn, and are not averaged."""
    from sklearn.metrics import f1_score

    L.seed_everything(2, verbose=False)
    task = ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3), lambda p: torch.optim.SGD(p, lr=0.05))
    federate(task, 2, strategy=AdaFed())
    x, y = blobs(61, 2)
    predicted = task.eval()(x).argmax(1)
    expected = 1 / (f1_score(y, predicted, average=None, labels=[0, 1, 2]) + 0.1)
    torch.testing.assert_close(task.loss.class_weights.double(), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert len(set(task.loss.class_weights.tolist())) > 1


def test_the_sanity_check_does_not_adapt_the_loss():
    class Watch(L.Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append(pl_module.loss.class_weights.tolist())

    seen = []
    task = ClassificationTask(Plain().net, 3, F1WeightedCrossEntropy(3))
    federate(task, 1, Watch(), flags={"num_sanity_val_steps": 2})
    assert seen == [[1.0, 1.0, 1.0]]
    assert task.loss.class_weights.tolist() != [1.0, 1.0, 1.0]


def test_cohort_of_some_clients_leaves_the_others_out():
    seen = []

    class Watch(L.Callback):
        def on_client_end(self, trainer, pl_module, update):
            seen.append((update.round_idx, update.client))

    federate(Plain(), 6, Watch(), clients_per_round=2)
    assert [sum(r == i for r, _ in seen) for i in range(6)] == [2] * 6
    assert len({tuple(sorted(c for r, c in seen if r == i)) for i in range(6)}) > 1


def test_disabled_is_the_centralized_baseline_on_the_union():
    """The same objects without rounds: 40 examples of the three clients, batches of 5, 8 steps an epoch."""
    module = Plain()
    federation = FederatedOrchestrator(enabled=False)
    run = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[federation],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.fit(module, FederatedDataModule(Blobs(n=60), Consecutive()))
    assert run.global_step == 16
    assert "federation/clients" not in run.callback_metrics


def test_the_module_is_given_back_untouched():
    module = Plain()
    before = set(vars(module))
    federate(module)
    assert set(vars(module)) - before <= {"_trainer", "_metric_attributes"}
    assert module.automatic_optimization
