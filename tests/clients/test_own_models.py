"""Clients with a model or a head of their own, by hand: Ditto, pFedMe, FedRep and FedBABU."""

import copy
from functools import partial

import pytest
import torch
from against_hand import (
    assert_close,
    assert_evaluated_with_own_models,
    average_shared,
    clients_of,
    complete,
    fit,
    follow,
    own_of,
)
from by_hand import LR, B, World, averaged, build, flat
from federations import SIZES, Blobs, Consecutive, Plain, client_scores, trainer
from torch.nn import functional as F

import fl_lightning as fl
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

    federation = follow(torch.float64, step, strategy=fl.Ditto(STRENGTH))
    for client, net in own.items():
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict())


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
    federation = follow(torch.float64, pfedme_step(2.0, 3, 0.2, beta, own), strategy=fl.PFedMe(2.0, 3, 0.2, beta))
    for client, net in own.items():
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict())


@pytest.mark.parametrize(
    "strategy", [fl.Ditto(STRENGTH), fl.PFedMe(2.0, 3, 0.2), fl.APFL(0.7)], ids=["ditto", "pfedme", "apfl"]
)
def test_clients_are_evaluated_with_their_own_models(strategy):
    assert_evaluated_with_own_models(strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"strategy": fl.Ditto(STRENGTH)}, {"strategy": fl.APFL(0.3)}, {"route": fl.LocalOnly("val_acc")}],
)
def test_an_own_model_is_exported(settings, tmp_path, capsys):
    module = Plain(batchnorm=True)
    federation = fl.FederatedOrchestrator(**settings)
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    trainer(1, federation, fl.LastCheckpoint(), **flags).fit(module, fl.FederatedDataModule(Blobs(), Consecutive()))
    saved = tmp_path / "checkpoints" / "last.ckpt"
    for client in range(3):
        export_main(["--client", str(client), "--ckpt_path", str(saved)])
        assert f"the own model of client {client}" in capsys.readouterr().out
        found = Plain.load_from_checkpoint(saved.with_name(f"last_{client}.ckpt"))
        own = own_of(federation, client, module.net).state_dict()
        assert all(torch.equal(found.net.state_dict()[name], tensor) for name, tensor in own.items())


def test_there_is_nothing_to_export_where_clients_keep_nothing(tmp_path):
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    told = (fl.FedAvg(), "holds no client's state"), (fl.FedDyn(), "holds no model of client 1's own")
    for strategy, message in told:
        checkpoint = fl.LastCheckpoint(dirpath=str(tmp_path / type(strategy).__name__))
        run = trainer(1, fl.FederatedOrchestrator(strategy), checkpoint, **flags)
        run.fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive()))
        with pytest.raises(fl.CheckpointError, match=message):
            export_main(["--client", "1", "--ckpt_path", f"{checkpoint.dirpath}/last.ckpt"])


HEAD = [fl.PersonalPart(names="net.3.*")]


def by_hand(phases, mu=0.0, decay=0.0):
    """Every client's network; ``phases`` says for each local epoch whether it trains the head (True) or the rest.

    The rest is pulled to the start of the round with strength ``mu``; what trains decays.
    """
    torch.manual_seed(3)
    start, world = Plain(lr=LR, batchnorm=True).double().net, World(torch.float64)
    clients = [copy.deepcopy(start) for _ in SIZES]
    for _ in range(3):
        for net, part in zip(clients, world.parts, strict=True):
            x, y = world.x[part], world.y[part]
            anchors = {name: p.detach().clone() for name, p in net.named_parameters()}
            for trains_head in phases:
                named = [(name, p) for name, p in net.named_parameters() if name.startswith("3.") is trains_head]
                chosen = [p for _, p in named]
                for begin in range(0, len(x), B):
                    loss = F.cross_entropy(net.train()(x[begin : begin + B]), y[begin : begin + B])
                    gradients = torch.autograd.grad(loss, chosen)
                    with torch.no_grad():
                        for (name, p), gradient in zip(named, gradients, strict=True):
                            pull = 0.0 if trains_head else mu * (p - anchors[name])
                            p -= LR * (gradient + pull + decay * p)
        average_shared(clients, lambda name: name.startswith("3."))
    return clients


REP, BABU = (fl.FedRep(2), (True, True, False)), (fl.FedBABU(), (False, False, False))


@pytest.mark.parametrize(
    ("of", "engine", "mu", "decay"), [(REP, "trainer", 0.5, 0.3), (REP, "fabric", 0.5, 0.3), (BABU, "trainer", 0.0, 0.0)]
)
def test_each_epoch_trains_one_part_and_the_other_neither_decays_nor_is_pulled(of, engine, mu, decay):
    (strategy, phases), local = of, fl.LocalTraining(max_epochs=3, engine=engine, proximal_mu=mu)
    decaying = partial(torch.optim.SGD, lr=LR, weight_decay=decay)
    module, federation, _ = fit(strategy=strategy, personal=HEAD, local=local, optimizer=decaying)
    for client, net in enumerate(by_hand(phases, mu, decay)):
        assert_close(net.state_dict(), complete(module, federation, client))


def test_fine_tuning_trains_the_head_of_fedbabu():
    evaluation = fl.ClientEvaluation(1, "val_loss", personal_epochs=5)
    _, federation, _ = fit(strategy=fl.FedBABU(), personal=HEAD, data={"client_test": 0.3}, client_evaluation=evaluation)
    before = client_scores(federation)[2]
    with open("client_comparison.csv") as file:
        rows = [line.split(",") for line in file.read().splitlines()]
    after = torch.tensor([float(row[rows[0].index("personalised")]) for row in rows[1:4]])
    assert (after < before - 0.01).all()
