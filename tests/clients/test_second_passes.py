"""Rules that pass batches through the module again: MOON and APFL, by hand, and what a further pass must leave alone."""

import copy
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from against_hand import Updates, assert_close, assert_follows, follow, own_of
from by_hand import LR, B, averaged
from federations import Blobs, Plain, federate, weights
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import APFL, MOON, Faults, FedAvg, LocalTraining

MU, T = 1.5, 0.4


def batches(world, k, epochs=2):
    x, y = world.x[world.parts[k]], world.y[world.parts[k]]
    return [(x[start : start + B], y[start : start + B]) for _ in range(epochs) for start in range(0, len(x), B)]


def descend(net, loss, lr=LR):
    parameters = list(net.parameters())
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p -= lr * g


def contrast(z, near, far):
    """Li et al. 2021, eq. 3, in numpy's terms."""
    s = [(z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1)) / T for other in (near, far)]
    return -torch.log(s[0].exp() / (s[0].exp() + s[1].exp())).mean()


def moon_step(last):
    """Algorithm 1; the representation is what the last layer reads."""

    def step(net, world, t):
        clients = []
        for k in range(3):
            client, received = copy.deepcopy(net).train(), copy.deepcopy(net).eval()
            for x, y in batches(world, k):
                z = client[:3](x)
                loss = F.cross_entropy(client[3](z), y)
                if k in last:
                    loss = loss + MU * contrast(z, received[:3](x).detach(), last[k][:3](x).detach())
                descend(client, loss)
            clients.append(client)
        for k, client in enumerate(clients):
            last[k] = copy.deepcopy(client).eval()
        return averaged(net, clients, world.sizes)

    return step


def test_moon_draws_representations_to_the_global_model():
    assert_follows(torch.float64, moon_step({}), strategy=MOON("net.2", MU, T))


def apfl_step(own, alphas, mixtures, rate):
    """Deng et al. 2020, Algorithm 1 and eq. 10; the mixture has batch statistics of its own."""

    def step(net, world, t):
        clients = []
        for k in range(3):
            w, v = copy.deepcopy(net).train(), own.setdefault(k, copy.deepcopy(net))
            mixture, alpha = mixtures.setdefault(k, copy.deepcopy(net)).train(), alphas.get(k, 0.6)
            for number, (x, y) in enumerate(batches(world, k)):
                mix(mixture, v, w, alpha)
                loss = F.cross_entropy(mixture(x), y)
                gradients = torch.autograd.grad(loss, list(mixture.parameters()))
                with torch.no_grad():
                    slope = sum(((a - b) * g).sum() for a, b, g in zip(v.parameters(), w.parameters(), gradients, strict=True))
                    for p, g in zip(v.parameters(), gradients, strict=True):
                        p -= LR * alpha * g
                descend(w, F.cross_entropy(w(x), y))
                if number == 0:
                    alpha = min(max(alpha - rate * float(slope), 0.0), 1.0)
            mix(mixture, v, w, alpha)
            alphas[k] = alpha
            clients.append(w)
        return averaged(net, clients, world.sizes)

    return step


def mix(mixture, v, w, alpha):
    with torch.no_grad():
        for m, a, b in zip(mixture.parameters(), v.parameters(), w.parameters(), strict=True):
            m.copy_(alpha * a + (1 - alpha) * b)


@pytest.mark.parametrize("rate", [2.0, 0.0, 1e6])
def test_apfl_trains_a_mixture_beside_the_global_model(rate):
    own, alphas, mixtures = {}, {}, {}
    federation = follow(torch.float64, apfl_step(own, alphas, mixtures, rate), strategy=APFL(0.6, rate))
    for client, net in mixtures.items():
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict())
        kept = federation._run.memory.kept(client)["rules"]
        assert float(kept["alpha"]) == pytest.approx(alphas[client], abs=1e-11)
        v = torch.cat([p.detach().reshape(-1) for p in own[client].parameters()])
        torch.testing.assert_close(kept["local"], v, rtol=0, atol=1e-11)
    found = set(alphas.values())
    assert found <= {0.0, 1.0} if rate == 1e6 else len(found) == (3 if rate else 1)


class Busy(Plain):
    """Draws, counts, collects, measures and keeps tensors in its training step, and loses more with all of them."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.drop = nn.Dropout(0.3)
        self.count, self.outputs, self.nested = 0, [], {"losses": [], "by": {}}
        self.mean = torch.zeros(4)
        self.draws = torch.Generator().manual_seed(1)
        self.register_buffer("queue", torch.zeros(3), persistent=False)
        self.extra = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.count += 1
        if batch_idx == 2:
            return None  # skips the batch
        self.mean.mul_(0.9).add_(x.detach().float().mean(0), alpha=0.1)
        self.queue = torch.cat([x.detach()[:1, 0], self.queue])[:3].to(self.queue)
        scale = 1 + self.count / 50 + len(self.outputs) / 40 + len(self.nested["losses"]) / 30
        scale = scale + self.mean.abs().mean() + self.queue.abs().mean() + torch.rand((), generator=self.draws)
        noise = 0.1 * torch.randn_like(x) + float(np.random.rand())
        logits = self.net(self.drop(x + noise))
        loss = F.cross_entropy(logits, y) * scale
        self.outputs.append(loss)
        self.nested["losses"].append(1.0)
        self.nested["by"][self.count] = 1
        self.log("extra", self.extra(logits, y), on_epoch=True)
        self.log_dict({"train_loss": loss, "outputs": float(len(self.outputs))}, on_epoch=True)
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("engine", [pytest.param("trainer", marks=pytest.mark.slow), "fabric"])
def test_the_shared_model_and_its_log_are_those_of_fedavg(engine):
    """Oracle: a term of weight 0, or one that is another model's alone, changes nothing, to the last bit."""

    def run(chosen):
        L.seed_everything(5, verbose=False)
        module, updates = Busy(), Updates()
        local = LocalTraining(max_epochs=2, engine=engine, accumulate_grad_batches=2)
        with pytest.warns(UserWarning, match="client_state"):
            federate(module, 2, updates, strategy=chosen, local=local)
        assert ("apfl_alpha" in updates.rounds[-1][0].metrics) is isinstance(chosen, APFL)
        told = [(u.client, u.train_loss, {n: v for n, v in u.metrics.items() if n != "apfl_alpha"}) for u in updates.rounds[-1]]
        return weights(module), told

    expected, logged = run(FedAvg())
    for strategy in (MOON("net.2", 0.0), APFL(0.5, 0.3)):
        found, told = run(strategy)
        assert_close(expected, found, 0.0)
        assert logged == told
        assert "outputs" in told[0][2]


FAILURES: list[int] = []


class Failing(Plain):
    """Client 1's third batch in round 1 fails once, in the middle of a step."""

    def forward(self, x):
        z = super().forward(x)
        if self.training and FAILURES and x.equal(Blobs().train[0][17:22]) and self.trainer.global_step >= 4:
            FAILURES.pop()
            raise RuntimeError("once")
        return z


@pytest.mark.slow
def test_a_client_that_is_tried_again_has_one_term():
    """Oracle: the run without a failure, to the last bit."""

    def run(failures):
        torch.manual_seed(3)
        FAILURES[:] = [1] * failures
        module, faults = Failing(batchnorm=True), Faults(retries=1)
        federate(module, 2, data=Blobs(shuffle=False), strategy=MOON("net.2", MU), faults=faults)
        assert not FAILURES
        return weights(module)

    assert_close(run(0), run(1), 0.0)
