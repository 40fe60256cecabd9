"""Differential privacy of clients and of examples: noise and clipping by hand, epsilon by another accountant."""

from __future__ import annotations

import copy
import math
import re
import sys

import lightning as L
import numpy as np
import pytest
import shake
import torch
from accountants import attained, gaussian_epsilon, poisson, renyi
from against_hand import DTYPES, Updates, assert_follows, clients_of
from by_hand import B, averaged, build, flat
from command_line import small
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from fl_lightning import (
    CheckpointError,
    ClientPrivacy,
    ClipUpdate,
    ConfigurationError,
    CrossEntropy,
    ExamplePrivacy,
    Faults,
    FedAvg,
    FedAvgM,
    FederatedDataModule,
    FederatedOrchestrator,
    LocalTraining,
    ProximalLoss,
    TopK,
)
from fl_lightning.data.poisson_loader import PoissonBatches
from fl_lightning.functional import epsilon_of_clients
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.options.example_privacy.checks import check_module
from fl_lightning.transforms import Message, Sender

NO_NOISE = 1e-9


# ---------------------------------------------------------------- clients


def sender(seed=0, kept=None):
    return Sender(0, 0, torch.Generator(), {} if kept is None else kept, secret(seed))


def secret(seed=0):
    return SecretKey.from_seed(seed).stream("test", 0)


def coins(seed):
    return lambda batch, count: SecretKey.from_seed(seed).stream("coins", 0, step=batch).uniforms(count)


def test_noise_at_the_client_is_gaussian():
    change = torch.zeros(200_000, dtype=torch.float64)
    change[0] = 50.0
    local = ClientPrivacy(2.0, 1.5, "local")
    sent = local.apply(Message(change, 8, torch.tensor([0]), 4), sender(3))
    noise = sent.change.clone()
    noise[0] -= 2.0  # what is left of 50
    assert stats.kstest(noise.numpy() / 3.0, "norm").pvalue > 1e-3
    assert (sent.positions, sent.nbytes) == (None, 4 * 200_000)  # which numbers were sent would not be private
    assert torch.equal(local.receive(change, 2, 3, torch.Generator(), secret()), change)


def test_noise_at_the_server_is_that_of_the_sum():
    central = ClientPrivacy(2.0, 1.5)
    change = torch.zeros(200_000, dtype=torch.float64)
    noise = central.receive(change, 6, 6, torch.Generator(), secret(1)).numpy()
    assert stats.kstest(noise / (2.0 * 1.5 / 6), "norm").pvalue > 1e-3
    assert torch.equal(central.apply(Message(change, 32), sender()).change, change)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", ["central", "local"])
def test_without_noise_it_is_the_clipped_average(noise, dtype):
    def step(net, world, t):
        w, clients = flat(net)[0], clients_of(net, world)
        for k, client in enumerate(clients):
            change = flat(client)[0] - w
            clients[k] = build(client, w + change * min(1, 0.4 / np.linalg.norm(change)), *flat(client)[1:])
        return averaged(net, clients, np.ones(3))

    privacy = ClientPrivacy(0.4, NO_NOISE, noise)
    assert_follows(dtype, step, transforms=[privacy], strategy=FedAvg("uniform"), batchnorm=False, tolerance=1e-7)


@pytest.mark.parametrize("noise", ["central", "local"])
def test_the_noise_is_in_proportion(noise):
    """The same draws: what is added to the clipped average is linear in the multiplier, and of the right size."""
    finals = {}
    for z in (NO_NOISE, 0.5, 2.0):
        module = Wide()
        strategy = FedAvg("uniform")
        privacy = ClientPrivacy(0.3, z, noise, noise_seed=1)
        federate(module, 1, strategy=strategy, transforms=[privacy], flags={"precision": "64-true"})
        finals[z] = flat(module)[0]
    small_, large = finals[0.5] - finals[NO_NOISE], finals[2.0] - finals[NO_NOISE]
    np.testing.assert_allclose(large, 4 * small_, atol=1e-8)
    expected = 2.0 * 0.3 / (3 if noise == "central" else math.sqrt(3))
    assert large.std() == pytest.approx(expected, rel=0.1)
    assert stats.kstest(large / expected, "norm").pvalue > 1e-3


class Wide(Plain):
    """Enough parameters to see a distribution."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3))


def logged(run):
    return {name: float(value) for name, value in run.logged_metrics.items()}


def test_epsilon_of_a_federation_counts_cohorts_and_rounds():
    strategy = FedAvg("uniform")
    transforms = [TopK(0.5), ClientPrivacy(0.5, 8.0, delta=1e-3)]
    run = federate(Plain(), 3, strategy=strategy, transforms=transforms, clients_per_round=1)
    spent = logged(run)["federation/epsilon_of_clients"]
    assert attained(8.0, 1, 3, 3, 1e-3)[0] <= spent <= renyi(8.0, 1, 3, 3, 1e-3)
    assert spent > attained(8.0, 1, 3, 2, 1e-3)[1]
    assert spent == pytest.approx(epsilon_of_clients(8.0, 1, 3, 3, 1e-3), rel=1e-6)


def test_epsilon_of_local_noise_is_that_of_the_client_that_sent_most():
    updates = Updates()
    privacy = ClientPrivacy(0.5, 4.0, "local", 1e-3, noise_seed=1)
    run = federate(Plain(), 4, updates, transforms=[privacy], clients_per_round=1)
    sent = [sum(any(u.client == k for u in r) for r in updates.rounds) for k in range(3)]
    assert 1 < max(sent) < 4
    exact = gaussian_epsilon(4.0 / 2 / math.sqrt(max(sent)), 1e-3)
    assert logged(run)["federation/epsilon_of_clients"] == pytest.approx(exact, rel=1e-3)


# ---------------------------------------------------------------- examples


def private_sgd(net, batches, norm, mu=0.0, momentum=0.0, lr=0.1, expected=B, rule=F.cross_entropy):
    """DP-SGD without noise, one example at a time."""
    client = copy.deepcopy(net).train()
    anchor = [p.detach().clone() for p in client.parameters()]
    velocity = [torch.zeros_like(p) for p in client.parameters()]
    for x, y in batches:
        total = [torch.zeros_like(p) for p in client.parameters()]
        for i in range(len(x)):
            gradients = torch.autograd.grad(rule(client(x[i : i + 1]), y[i : i + 1]), list(client.parameters()))
            length = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += g * min(1.0, norm / (length + 1e-6))
        with torch.no_grad():
            for p, g, v, w in zip(client.parameters(), total, velocity, anchor, strict=True):
                v.mul_(momentum).add_(g / expected + mu * (p - w))
                p -= lr * v
    return client


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_each_examples_gradient_is_clipped(engine, dtype):
    """All examples in one batch, three epochs, with momentum and FedProx's term, against a loop over examples."""
    lengths = 0.3

    def step(net, world, t):
        clients = []
        for part in world.parts:
            whole = [(world.x[part], world.y[part])] * 3
            clients.append(private_sgd(net, whole, lengths, mu=0.2, momentum=0.9, expected=len(part)))
        return averaged(net, clients, world.sizes)

    privacy = ExamplePrivacy(lengths, NO_NOISE)
    local = LocalTraining(engine=engine, max_epochs=3, full_batch=True, privacy=privacy, proximal_mu=0.2)
    assert_follows(dtype, step, local=local, batchnorm=False, momentum=0.9, tolerance=1e-6)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batches_are_drawn_by_coins(batch_size):
    """Batches of any size, empty ones too, which move nothing."""
    data = Blobs(batch_size=batch_size)
    torch.manual_seed(2)
    module = Plain()
    by_hand = copy.deepcopy(module.net)
    privacy = ExamplePrivacy(0.5, NO_NOISE, noise_seed=4)
    updates = Updates()
    federate(module, 2, updates, data=data, local=LocalTraining(max_epochs=2, privacy=privacy))
    x, y = data.train
    empty = 0
    for t in range(2):
        clients, start = [], 0
        for k, size in enumerate(SIZES):
            batches = []
            for step in range(2 * math.ceil(size / batch_size)):
                thrown = shake.uniforms(size, shake.key_of(4), t, k, step, 0, "coins of examples, period 0")
                chosen = start + torch.tensor([i for i, x in enumerate(thrown) if x < min(batch_size, size) / size]).long()
                empty += not chosen.numel()
                batches.append((x[chosen], y[chosen]))
            clients.append(private_sgd(by_hand, batches, 0.5, expected=min(batch_size, size)))
            start += size
            assert updates.rounds[t][k].num_steps == len(batches)
        by_hand = averaged(by_hand, clients, SIZES)
    assert (empty > 0) == (batch_size == 1)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-5)


class Rows(Dataset):
    """The same examples, one by one."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


class OneByOne(Blobs):
    workers = 0

    def train_dataloader(self):
        return DataLoader(Rows(*self.train), batch_size=self.batch_size, shuffle=True, num_workers=self.workers)


class ByWorkers(OneByOne):
    workers = 1


def test_what_opacus_leaves_on_layers_is_not_the_modules_state(recwarn):
    federate(Plain(), 2, local=LocalTraining(privacy=ExamplePrivacy(0.5, 0.8, noise_seed=1)))
    assert not [str(warning.message) for warning in recwarn if "client_state" in str(warning.message)]


def test_examples_that_are_read_one_by_one_are_drawn_alike():
    finals = []
    for source in (Blobs, OneByOne, ByWorkers):
        torch.manual_seed(0)
        module = Plain()
        federate(module, 2, data=source(), local=LocalTraining(privacy=ExamplePrivacy(0.5, 0.8, noise_seed=1)))
        finals.append(weights(module))
    assert same_bits(finals[0], finals[1])
    assert same_bits(finals[0], finals[2])


def test_the_engines_agree_to_the_last_bit():
    finals = []
    for engine in ("trainer", "fabric"):
        torch.manual_seed(0)
        module = Plain(momentum=0.9)
        privacy = ExamplePrivacy(0.5, 1.0, noise_seed=1)
        federate(module, 2, local=LocalTraining(engine=engine, max_epochs=2, privacy=privacy))
        finals.append(weights(module))
    assert same_bits(*finals)


def test_the_noise_of_a_step():
    """One step of one client: rate * sigma * norm / batch in each number."""
    finals = {}
    for sigma in (NO_NOISE, 1.0):
        torch.manual_seed(0)
        module = Wide()
        privacy = ExamplePrivacy(0.7, sigma, noise_seed=1)
        local = LocalTraining(full_batch=True, privacy=privacy)
        federate(module, 1, partitioner=Consecutive([40]), local=local)
        finals[sigma] = flat(module)[0]
    noise = (finals[1.0] - finals[NO_NOISE]) / (0.1 * 0.7 / 40)
    assert stats.kstest(noise, "norm").pvalue > 1e-3


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 9))
def test_poisson_batches(size, batch_size, seed):
    batches = PoissonBatches(size, batch_size, coins(seed))
    drawn = list(batches)
    assert len(drawn) == len(batches) == math.ceil(size / batch_size)
    assert batches.rate == min(batch_size, size) / size
    for batch, persons in zip(drawn, batches.drawn, strict=True):
        assert batch == sorted(set(batch))
        assert set(batch) <= set(range(size))
        assert batch == [0] if persons is None else persons.tolist() == list(range(len(batch)))
    if batch_size >= size:
        assert drawn == [list(range(size))]


def test_coins_have_their_probability():
    """20,000 coins of 0.15, and no two examples that come together more often than they should."""
    batches = PoissonBatches(20, 3, coins(0))
    there = np.zeros((0, 20))
    for _ in range(150):
        rows = np.zeros((len(batches), 20))
        for row, batch in zip(rows, batches, strict=True):
            if batches.drawn.popleft() is not None:
                row[batch] = 1
        there = np.concatenate([there, rows])
    assert stats.binomtest(int(there.sum()), there.size, 0.15).pvalue > 1e-3
    assert stats.binomtest(int((there[:, 0] * there[:, 1]).sum()), len(there), 0.15**2).pvalue > 1e-3


def test_epsilon_of_examples_counts_each_clients_steps():
    updates = Updates()
    privacy = ExamplePrivacy(1.0, 0.9, 1e-4)
    run = federate(Plain(), 3, updates, local=LocalTraining(max_epochs=2, privacy=privacy), clients_per_round=2)
    steps, spent = dict.fromkeys(range(3), 0), {}
    for updates_of in updates.rounds:
        for update in updates_of:
            steps[update.client] += update.num_steps
            spent[update.client] = poisson(0.9, B / SIZES[update.client], steps[update.client], 1e-4)[1]
            assert update.epsilon == pytest.approx(spent[update.client], rel=0.01, abs=0.02)
    assert logged(run)["federation/epsilon_of_examples"] == pytest.approx(max(spent.values()), rel=0.01, abs=0.02)


def test_the_module_is_left_as_it_was():
    module = Plain()
    federate(module, 1, local=LocalTraining(privacy=ExamplePrivacy(1.0, 1.0)))
    for part in module.modules():
        assert not part._forward_hooks
        assert not part._backward_hooks
    assert all("grad_sample" not in vars(parameter) for parameter in module.parameters())


# ---------------------------------------------------------------- what is refused


class TwoOptimizers(Plain):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]


class Recurrent(Plain):
    def __init__(self):
        super().__init__()
        self.net = nn.RNN(4, 3)


class Penalised(Plain):
    def __init__(self):
        super().__init__()
        self.loss = ProximalLoss(CrossEntropy(), 1.0)


class Averaging(Plain):
    """Keeps a mean of its inputs in a buffer, which is averaged over clients."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))


class Positions(Plain):
    """Adds what it has learnt of three places, without a batch in front."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(3, 4)

    def forward(self, x):
        return self.net(x + self.places(torch.arange(3)).mean(dim=0))


class Unused(Plain):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def test_modules_that_mix_examples_are_refused():
    private = LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))
    for module, local, message in (
        (Plain(batchnorm=True), private, r"cannot separate an example's gradient from the others: net.1 \(BatchNorm1d\)"),
        (TwoOptimizers(), private, "TwoOptimizers optimizes manually"),
        (Recurrent(), private, r"others: net \(RNN\). Use GroupNorm"),
        (Penalised(), private, r"others: loss \(ProximalLoss\)"),
        (Averaging(), private, "The clients send the buffers mean with the parameters"),
        (
            Positions(),
            private,
            r"found gradients of (3 and \d+|\d+ and 3) examples .* a layer of Positions does not have the batch",
        ),
        (
            Unused(),
            private,
            "a gradient for every trainable parameter, but 'spare.weight' does not contribute to the loss",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            federate(module, 1, local=local)


def test_models_of_which_more_is_sent_are_refused():
    privacy, strategy = [ClientPrivacy(1.0, 1.0)], FedAvg("uniform")
    with pytest.raises(ConfigurationError, match=r"buffers net\.1\.running_mean, net\.1\.running_var, net\.1"):
        federate(Plain(batchnorm=True), 1, transforms=privacy, strategy=strategy)


def test_frozen_parameters_are_not_sent_and_get_no_noise():
    frozen = Plain()
    frozen.net[0].requires_grad_(False)
    before = weights(frozen)
    federate(frozen, 1, transforms=[ClientPrivacy(1.0, 1.0)], strategy=FedAvg("uniform"))
    assert torch.equal(frozen.net[0].weight, before["net.0.weight"])
    assert not torch.equal(frozen.net[2].weight, before["net.2.weight"])


def test_momentum_at_the_server_costs_nothing():
    """In the first round it is FedAvg, with the same noise; after two the epsilon is the same and the model another."""
    finals, spent = {}, {}
    for rounds in (1, 2):
        for strategy in (FedAvg("uniform"), FedAvgM(0.9, weighting="uniform")):
            torch.manual_seed(0)
            module = Plain()
            run = federate(module, rounds, transforms=[ClientPrivacy(1.0, 1.0, noise_seed=1)], strategy=strategy)
            finals[rounds, type(strategy)] = weights(module)
            spent[rounds, type(strategy)] = logged(run)["federation/epsilon_of_clients"]
    assert same_bits(finals[1, FedAvg], finals[1, FedAvgM])
    assert not same_bits(finals[2, FedAvg], finals[2, FedAvgM])
    assert spent[2, FedAvg] == spent[2, FedAvgM] > spent[1, FedAvg]


def test_a_client_that_failed_changed_nothing():
    """The sum over those who delivered, divided by all: who failed cannot be seen in the average's noise either."""

    class Two(Blobs):
        def __init__(self):
            super().__init__()
            self.train[0][: SIZES[0]] = torch.nan

    finals = {}
    for name, partitioner, data in (("failed", Consecutive(), Two()), ("two", Consecutive(SIZES[1:]), Later())):
        torch.manual_seed(0)
        module = Plain()
        start = flat(module.net)[0]
        local = LocalTraining(full_batch=True)
        federate(
            module,
            1,
            data=data,
            partitioner=partitioner,
            strategy=FedAvg("uniform"),
            transforms=[ClientPrivacy(5.0, NO_NOISE)],
            faults=Faults("skip"),
            local=local,
        )
        finals[name] = flat(module.net)[0] - start
    np.testing.assert_allclose(finals["failed"], finals["two"] * 2 / 3, rtol=1e-4, atol=1e-7)


class Later(Blobs):
    """Without the first client's examples."""

    def __init__(self):
        super().__init__()
        self.train = tuple(tensor[SIZES[0] :] for tensor in self.train)


def test_a_change_that_is_not_finite_is_not_told():
    for value in (math.nan, math.inf):
        change = torch.tensor([1.0, value, 2.0], dtype=torch.float64)
        sent = ClientPrivacy(1.0, NO_NOISE, "local").apply(Message(change, 32), sender())
        torch.testing.assert_close(sent.change, torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_flags_of_batches_drawn_ahead_are_forgotten():
    batches = PoissonBatches(30, 1, coins(0))
    ahead = iter(batches)
    for _ in range(5):
        next(ahead)
    drawn = list(batches)
    assert len(batches.drawn) == len(drawn) == 30


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"transforms": [ClientPrivacy(1.0, 0.1)]}, {"transforms": [ClientPrivacy(1.0, 10.0)]}),
        ({}, {"transforms": [ClientPrivacy(1.0, 10.0)]}),
        (
            {"local": LocalTraining(privacy=ExamplePrivacy(1.0, 0.3))},
            {"local": LocalTraining(privacy=ExamplePrivacy(1.0, 9.0))},
        ),
        ({"local": LocalTraining(privacy=ExamplePrivacy(1.0, 0.3))}, {}),
    ],
)
def test_a_resumed_run_keeps_its_promise(first, then, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    flags = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
    strategy = FedAvg("uniform")
    federate(Plain(), 1, checkpoint, strategy=strategy, flags=flags, **first)
    with pytest.raises(CheckpointError, match=r"The checkpoint was written with .*no single epsilon covers both"):
        federate(Plain(), 2, strategy=strategy, ckpt_path=str(tmp_path / "last.ckpt"), **then)


@pytest.mark.parametrize("package", ["opacus", "dp_accounting"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    make = {"opacus": lambda: ExamplePrivacy(1.0, 1.0), "dp_accounting": lambda: ClientPrivacy(1.0, 1.0)}[package]
    with pytest.raises(ConfigurationError, match=r"pip install 'fl_lightning\[privacy\]'"):
        make()


ONE = "{class_path: ClientPrivacy, init_args: {max_norm: 1.0, noise_multiplier: 1.0%s}}"
UNIFORM = "strategy={class_path: FedAvg, init_args: {weighting: uniform}}"
LOCAL, EXAMPLES = "transforms=[" + ONE % ", noise: local" + "]", "local.privacy={max_grad_norm: 1.0, noise_multiplier: 1.0}"
FEDLOSS = ["strategy=FedLoss", "--data.client_validation=0.1"]


def clients(more="", then=""):
    return f"transforms=[{ONE % more}{then}]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([clients()], "but AdaFed combines models in another way"),
        ([clients(), "strategy=FedAvg"], "but FedAvg weighs by 'examples'"),
        ([LOCAL, "strategy=Scaffold"], "Scaffold's clients send control variates with their models"),
        ([LOCAL, *FEDLOSS], "FedLoss reads metrics that"),
        ([clients(then=", {class_path: Quantize}"), UNIFORM], "Quantize comes after ClientPrivacy and may increase the norm"),
        ([clients(then=", " + ONE % ""), UNIFORM], "contains ClientPrivacy more than once"),
        ([clients(), UNIFORM, "availability.leave=0.1"], "because 'federation.availability.leave' is 0.1"),
        ([clients(), UNIFORM, "--data.rebalancing={}"], "'data.rebalancing' lets each client's label counts influence"),
        ([clients(), UNIFORM, "attackers={clients: [1], model: ALIE}"], "ALIE reads the honest clients' changes before"),
        ([clients(), UNIFORM, "--data.server_set=clients", "--data.client_test=0.2"], "'data.server_set' is clients, so the"),
        ([clients(), UNIFORM, "local.precision=bf16-true"], "'federation.local.precision' must be one of at least 32 bits"),
        ([clients(), UNIFORM, "route=WarmStart"], "on the route WarmStart clients pass models to each other"),
        ([clients().replace("norm: 1.0", "norm: .inf"), UNIFORM], "'federation.transforms.max_norm' must be above 0 and below"),
        ([EXAMPLES, "route=FedStar", "strategy=FedAvg"], "The route FedStar evaluates clients' models on their training"),
        ([EXAMPLES, "route=Mediators", "strategy=FedAvg"], "The route Mediators evaluates clients' models on their tr"),
        ([EXAMPLES, "--data.server_set=clients", "--data.client_test=0.2"], "'data.server_set' is clients, so the server"),
        ([clients(", delta: 1.0"), UNIFORM], "'federation.transforms.delta' must be above 0 and below 1"),
        ([clients(", noise: none"), UNIFORM], "noise"),
        ([clients().replace("multiplier: 1.0", "multiplier: 0"), UNIFORM], "'federation.transforms.noise_multiplier' must be"),
        ([EXAMPLES.replace("norm: 1.0", "norm: 0")], "'federation.local.privacy.max_grad_norm' must be above 0 and below 1e12"),
        ([EXAMPLES.replace("er: 1.0", "er: .inf")], "'federation.local.privacy.noise_multiplier' must be above 0 and below"),
        ([EXAMPLES, "local.privacy.delta=0"], "'federation.local.privacy.delta' must be above 0 and below 1"),
        ([EXAMPLES, "local.engine=stacked"], "'federation.local.engine' must be one of trainer, fabric, auto with"),
        ([EXAMPLES, "local.accumulate_grad_batches=2"], "'federation.local.accumulate_grad_batches' must be 1 with"),
        ([EXAMPLES, "local.precision=16-mixed"], "'federation.local.precision' must be one of 32-true, 64-true, bf16-mixed"),
        ([EXAMPLES, "--data.rebalancing={}"], "'data.rebalancing' repeats examples"),
        ([EXAMPLES, *FEDLOSS], "'federation.local.privacy' does not cover"),
    ],
)
def test_wrong_settings_are_named(fl, options, message):
    status, text = small(fl, *(o if o.startswith("--") else f"--federation.{o}" for o in options))
    assert status in (1, 2), text
    assert message in text
    assert "Traceback" not in text


def test_two_optimizers_are_refused():
    class Two(Plain):
        def configure_optimizers(self):
            half = list(self.parameters())
            return [torch.optim.SGD(half[:2], 0.1), torch.optim.SGD(half[2:], 0.1)]

    from fl_lightning.core import ClientContext
    from fl_lightning.options.example_privacy.clients import PrivateSteps

    context = ClientContext(
        num_clients=1, seed=0, device=torch.device("cpu"), kept=lambda _: {}, secret=SecretKey.draw(), strategy=FedAvg()
    )
    steps = PrivateSteps(ExamplePrivacy(1.0, 1.0), context)
    outer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    module = Two()
    outer.strategy.optimizers = module.configure_optimizers()
    with pytest.raises(ConfigurationError, match="needs exactly one optimizer, but Two configures 2"):
        steps.on_train_start(outer, module)


def test_clipping_alone_is_clipping_without_noise():
    finals = []
    for transform in (ClipUpdate(0.4), ClientPrivacy(0.4, NO_NOISE)):
        torch.manual_seed(0)
        module = Plain()
        data = FederatedDataModule(Blobs(), Consecutive())
        federation = FederatedOrchestrator(strategy=FedAvg("uniform"), transforms=[transform])
        trainer(2, federation).fit(module, data)
        finals.append(weights(module))
    for name, value in finals[0].items():
        torch.testing.assert_close(finals[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (torch.nn.CrossEntropyLoss(ignore_index=0), "'ignore_index', which changes the number of examples"),
        (torch.nn.CrossEntropyLoss(reduction="sum"), "reduction 'sum' instead of 'mean'"),
        (torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), "class weights, by whose sum the loss is divided"),
    ],
)
def test_a_loss_that_is_no_mean_over_examples_is_refused(loss, why):
    """One example changed the clipped sum by 1.25 norms, with 'ignore_index'."""
    module = Plain()
    module.loss = loss
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        check_module("32-true", module)
    module.loss = torch.nn.CrossEntropyLoss()
    check_module("32-true", module)
