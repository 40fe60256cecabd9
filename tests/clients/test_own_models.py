"""Strategies whose clients keep a complete model of their own beside the shared one: Ditto and pFedMe."""

from __future__ import annotations

import copy

import pytest
import torch
from against_hand import DTYPES, assert_close, assert_follows, clients_of, final
from by_hand import LR, B, averaged, build, flat
from federations import Blobs, Consecutive, Plain, client_scores, federate, trainer
from torch.nn import functional as F

from fl_lightning import (
    APFL,
    Attackers,
    ClientEvaluation,
    ConfigurationError,
    Ditto,
    ExamplePrivacy,
    FedAvg,
    FedCyclic,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
    PersonalPart,
    PFedMe,
)
from fl_lightning.cli.commands.export import main as export_main
from fl_lightning.errors import EngineError

STRENGTH = 0.4


def own_of(federation, client, like):
    """A client's own network."""
    found = federation._run.memory.last_model(client)
    size = sum(p.numel() for p in like.parameters())
    return build(like, found.vector[:size], found.vector[size:], found.counters)


def follow(dtype, step, **settings):
    """As assert_follows, and return the federation."""
    run, _ = assert_follows(dtype, step, **settings)
    return next(callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_ditto_trains_a_second_model_near_the_global_one(dtype, engine):
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

    local = LocalTraining(max_epochs=2, engine=engine)
    federation = follow(dtype, step, strategy=Ditto(STRENGTH), local=local)
    for client, net in own.items():
        tolerance = 1e-11 if dtype == torch.float64 else 5e-6
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict(), tolerance)


def test_ditto_without_a_pull_is_training_alone_beside_fedavg():
    """Oracles: FedAvg for the shared model, to the last bit, and LocalOnly for the others."""
    assert_close(final(strategy=Ditto(0.0)), final(strategy=FedAvg()), 0.0)

    def run(**settings):
        torch.manual_seed(3)
        federation = FederatedOrchestrator(local=LocalTraining(max_epochs=2), **settings)
        trainer(3, federation).fit(Plain(batchnorm=True), FederatedDataModule(Blobs(shuffle=False), Consecutive()))
        return [federation._run.memory.last_model(k).vector for k in range(3)]

    for one, other in zip(run(strategy=Ditto(0.0)), run(route=LocalOnly("val_acc")), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_pfedme_sends_a_model_that_follows_the_clients_own(dtype, beta):
    own = {}
    federation = follow(dtype, pfedme_step(2.0, 3, 0.2, beta, own), strategy=PFedMe(2.0, 3, 0.2, beta))
    for client, net in own.items():
        tolerance = 1e-11 if dtype == torch.float64 else 5e-6
        assert_close(net.state_dict(), own_of(federation, client, net).state_dict(), tolerance)


@pytest.mark.parametrize("strategy", [Ditto(STRENGTH), PFedMe(2.0, 3, 0.2)], ids=["ditto", "pfedme"])
def test_clients_are_evaluated_with_their_own_models(strategy):
    torch.manual_seed(3)
    module = Plain(batchnorm=True).double()
    evaluation = ClientEvaluation(1, "val_loss")
    federation = FederatedOrchestrator(strategy, client_evaluation=evaluation)
    data = FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), client_test=0.3)
    trainer(1, federation, precision="64-true").fit(module, data)
    x, y = Blobs(dtype=torch.float64).train
    for client in range(3):
        net = own_of(federation, client, module.net).eval()
        rows = data.splits.test[client]
        with torch.no_grad():
            expected = float(F.cross_entropy(net(x[rows]), y[rows]))
        assert float(client_scores(federation)[0][client]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": Ditto(STRENGTH)},
        {"strategy": PFedMe(2.0, 3, 0.2)},
        {"strategy": APFL(0.3)},
        {"route": LocalOnly("val_acc")},
    ],
    ids=["ditto", "pfedme", "apfl", "local only"],
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


class TwoOptimizers(Plain):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[k].parameters(), lr=0.1) for k in (0, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: {"strategy": Ditto(-1.0)}, "'federation.strategy.strength' must be 0 or above"),
        (lambda: {"strategy": PFedMe(0.0)}, "'federation.strategy.strength' must be above 0"),
        (lambda: {"strategy": PFedMe(steps=0)}, "'federation.strategy.steps' must be 1 or above"),
        (lambda: {"strategy": PFedMe(lr=0.1)}, "'federation.strategy.lr' must be above 0 and at most 1 / strength"),
        (lambda: {"strategy": PFedMe(beta=0.0)}, "'federation.strategy.beta' must be above 0"),
        (lambda: {"strategy": Ditto(), "route": FedCyclic()}, "which the route FedCyclic does not support"),
        (
            lambda: {"strategy": Ditto(), "personal": [PersonalPart(names="net.0")]},
            "lets each client keep parts of its own, but Ditto keeps a complete model of each client's own",
        ),
        (
            lambda: {"strategy": PFedMe(), "attackers": Attackers(discard_global=[1])},
            "'federation.attackers.discard_global' gives clients complete models of their own, but PFedMe keeps",
        ),
        (
            lambda: {"strategy": Ditto(), "local": LocalTraining(privacy=ExamplePrivacy(1.0, 0.5, noise_seed=7))},
            "whose steps 'federation.local.privacy' does not cover",
        ),
        (lambda: {"strategy": PFedMe(), "module": TwoOptimizers()}, "pFedMe counts the steps of one optimizer"),
    ],
)
def test_wrong_settings(settings, message):
    def run():
        made = settings()
        federate(made.pop("module", Plain()), 1, **made)

    with pytest.raises(ConfigurationError, match=message):
        run()


@pytest.mark.parametrize("strategy", [Ditto(), PFedMe()], ids=["ditto", "pfedme"])
def test_stacked_clients_refuse_a_second_model(strategy):
    with pytest.raises(EngineError, match=r"Stacked clients do not support (OwnModel|MoreauEnvelope)"):
        federate(Plain(), 1, strategy=strategy, local=LocalTraining(engine="stacked"))
