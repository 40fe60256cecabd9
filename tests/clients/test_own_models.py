"""Strategies whose clients keep a complete model of their own beside the shared one: Ditto and pFedMe."""

from __future__ import annotations

import copy

import pytest
import torch
from against_hand import assert_close, assert_evaluated_with_own_models, clients_of, final, follow, own_of
from by_hand import LR, B, averaged, build, flat
from federations import Blobs, Consecutive, Plain, trainer
from torch.nn import functional as F

from fl_lightning import (
    APFL,
    Ditto,
    FedAvg,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    LastCheckpoint,
    LocalOnly,
    PFedMe,
)
from fl_lightning.cli.commands.export import main as export_main

STRENGTH = 0.4


def test_ditto_trains_a_second_model_near_the_global_one():
    own = {}

    def step(net, world, t):
        world = copy.copy(world)
        for k in range(3):
            start = own.get(k, net)
            world.mu = STRENGTH
            towards = [STRENGTH * (v - w).detach() for v, w in zip(start.parameters(), net.parameters(), strict=True)]
            own[k], _ = world.train(start, k, correction=towards)
        world.mu = 0.0
        return averaged(net, clients_of(net, world), world.sizes)

    federation = follow(torch.float64, step, strategy=Ditto(STRENGTH))
    for client, net in own.items():
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict())


def test_ditto_without_a_pull_is_fedavg_for_the_shared_model():
    assert_close(final(strategy=Ditto(0.0)), final(strategy=FedAvg()), 0.0)


def pfedme_step(strength, steps, rate, beta, own):
    """Dinh et al. 2020, Algorithm 1, where each step of theta sees the next batch."""

    def step(net, world, t):
        sent = []
        for k, part in enumerate(world.parts):
            x, y = world.x[part], world.y[part]
            theta, w, done = copy.deepcopy(net).train(), [p.detach().clone() for p in net.parameters()], 0
            batches = [slice(begin, begin + B) for _ in range(2) for begin in range(0, len(x), B)]
            for number, batch in enumerate(batches):
                loss = F.cross_entropy(theta(x[batch]), y[batch])
                gradients = torch.autograd.grad(loss, list(theta.parameters()))
                with torch.no_grad():
                    for p, g, shared in zip(theta.parameters(), gradients, w, strict=True):
                        p -= LR * (g + strength * (p - shared))
                    done += 1
                    if done == steps or number + 1 == len(batches):
                        w = [a - rate * strength * (a - p) for a, p in zip(w, theta.parameters(), strict=True)]
                        done = 0
            own[k] = theta
            vector = torch.cat([tensor.reshape(-1) for tensor in w]).double().numpy()
            sent.append(build(theta, vector, *flat(theta)[1:]))
        mean = averaged(net, sent, [1, 1, 1])
        start = flat(net)[0]
        return build(net, start + beta * (flat(mean)[0] - start), *flat(mean)[1:])

    return step


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_pfedme_sends_a_model_that_follows_the_clients_own(beta):
    own = {}
    federation = follow(torch.float64, pfedme_step(2.0, 3, 0.2, beta, own), strategy=PFedMe(2.0, 3, 0.2, beta))
    for client, net in own.items():
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict())


@pytest.mark.parametrize("strategy", [Ditto(STRENGTH), PFedMe(2.0, 3, 0.2), APFL(0.7)], ids=["ditto", "pfedme", "apfl"])
def test_clients_are_evaluated_with_their_own_models(strategy):
    assert_evaluated_with_own_models(strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"strategy": Ditto(STRENGTH)}, {"strategy": PFedMe()}, {"strategy": APFL(0.3)}, {"route": LocalOnly("val_acc")}],
)
def test_an_own_model_is_exported(settings, tmp_path, capsys):
    module = Plain(batchnorm=True)
    federation = FederatedOrchestrator(**settings)
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    trainer(1, federation, LastCheckpoint(), **flags).fit(module, FederatedDataModule(Blobs(), Consecutive()))
    saved = tmp_path / "checkpoints" / "last.ckpt"
    for client in range(3):
        export_main(["--client", str(client), "--ckpt_path", str(saved)])
        assert f"the own model of client {client}" in capsys.readouterr().out
        found = Plain.load_from_checkpoint(saved.with_name(f"last_{client}.ckpt"))
        own = own_of(federation, client, module.net).state_dict()
        assert all(torch.equal(found.net.state_dict()[name], tensor) for name, tensor in own.items())


def test_there_is_nothing_to_export_where_clients_keep_nothing(tmp_path, capsys):
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    for strategy, rounds, message in (
        (FedAvg(), 1, "holds no client's state"),
        (FedDyn(), 1, "holds no model of client 1's own"),
    ):
        checkpoint = LastCheckpoint(dirpath=str(tmp_path / type(strategy).__name__))
        run = trainer(rounds, FederatedOrchestrator(strategy), checkpoint, **flags)
        run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
        with pytest.raises(SystemExit):
            export_main(["--client", "1", "--ckpt_path", f"{checkpoint.dirpath}/last.ckpt"])
        assert message in capsys.readouterr().err
