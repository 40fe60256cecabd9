"""Secure aggregation: the masks cancel to the last bit, and a single message says nothing."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from against_hand import Updates
from command_line import small
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_lightning import (
    Availability,
    ClientError,
    ClipUpdate,
    ConfigurationError,
    Faults,
    FedAvg,
    FedAvgM,
    FederatedDataModule,
    FederatedOrchestrator,
    FedLoss,
    FedNova,
    LocalTraining,
    Scaffold,
    SecureAggregation,
    WarmStart,
)
from fl_lightning.functional import Sums
from fl_lightning.functional.secret_sharing import PRIME, agreed_key, join_shares, public_key, split_secret
from fl_lightning.options.secure_aggregation.protocol import MaskedRound


@given(st.integers(0, PRIME - 1), st.integers(1, 12), st.data())
def test_enough_shares_give_the_secret(secret, holders, data):
    threshold = data.draw(st.integers(1, holders))
    ids = data.draw(st.lists(st.integers(0, 10**6), min_size=holders, max_size=holders, unique=True))
    shares = split_secret(secret, threshold, ids, random.Random(3))
    some = data.draw(st.lists(st.sampled_from(ids), min_size=threshold, max_size=holders, unique=True))
    assert join_shares({holder: shares[holder] for holder in some}) == secret


@pytest.mark.parametrize("secret", [0, 12345, PRIME - 1])
def test_fewer_shares_say_nothing(secret):
    """Two shares of a secret that takes three are uniform, whatever it is, and independent of each other."""
    draws = [split_secret(secret, 3, [0, 1, 2, 3], random.Random(k)) for k in range(2000)]
    first, second = (np.array([float(shares[holder]) / PRIME for shares in draws]) for holder in (1, 3))
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert stats.kstest(second, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


@given(st.integers(1, PRIME - 1), st.integers(1, PRIME - 1))
def test_two_agree_on_a_key(one, other):
    assert agreed_key(one, public_key(other)) == agreed_key(other, public_key(one))


def messages(cohort, values, threshold=0.6):
    """What each client sends, and the protocol of the round."""
    masked = MaskedRound(tuple(cohort), SecureAggregation(threshold).least(len(cohort)), 7, 2)
    sent = {}
    for client in cohort:
        sent[client] = Sums()
        sent[client].add("state", values[client])
        sent[client].add("weight", float(client + 1))
        masked.mask(client, sent[client])
    return masked, sent


def random_values(cohort, size=300):
    draw = torch.Generator().manual_seed(0)
    return {client: torch.randn(size, generator=draw, dtype=torch.float64) * 10.0 ** (client % 6 - 2) for client in cohort}


def test_a_message_looks_like_any():
    """Both limbs of a masked sum are uniform modulo 2**64, and say nothing about what is under the mask."""
    cohort = [0, 1, 2, 4]
    values = random_values(cohort, 5000)
    _, sent = messages(cohort, values)
    for client in cohort:
        for integers in (integers for name, integers in sent[client].masks() if name.startswith("state")):
            limb = (integers.double() / 2.0**63).numpy()
            assert stats.kstest(limb, "uniform", (-1, 2)).pvalue > 1e-3
            assert abs(np.corrcoef(limb, values[client].numpy())[0, 1]) < 0.08


@given(st.sets(st.integers(0, 30), min_size=2, max_size=6), st.data())
def test_the_sum_of_those_who_delivered(cohort, data):
    """Whoever drops out, as long as enough are left: to the last bit."""
    cohort = sorted(cohort)
    values = random_values(range(31), 5)
    masked, sent = messages(cohort, values)
    needed = max(2, math.ceil(0.6 * len(cohort) - 1e-9))
    delivered = data.draw(st.lists(st.sampled_from(cohort), min_size=needed, max_size=len(cohort), unique=True))
    received, plain = Sums(), Sums()
    for client in delivered:
        received.merge(sent[client])
        plain.add("state", values[client])
        plain.add("weight", float(client + 1))
    masked.unmask(received, delivered, delivered)
    assert torch.equal(received.value("state"), plain.value("state"))
    assert received.scalar("weight") == plain.scalar("weight")


def test_too_few_cannot_remove_the_masks():
    masked, sent = messages([0, 1, 2, 3, 4], random_values(range(5)), threshold=0.6)
    with pytest.raises(ClientError, match=r"Round 2: 2 of 5 clients delivered, but removing the masks takes 3 or more"):
        masked.unmask(sent[0], [0, 1], [0])


def test_a_client_alone_is_never_unmasked():
    """All others may be away, and then a share of the cohort is one client."""
    masked, sent = messages([4], random_values([4]))
    with pytest.raises(ClientError, match=r"Round 2: 1 of 1 clients delivered, but removing the masks takes 2 or more"):
        masked.unmask(sent[4], [4], [4])


class OneBroken(Blobs):
    def __init__(self):
        super().__init__()
        self.train[0][: SIZES[0]] = torch.nan


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": FedAvgM(0.5, weighting="uniform"), "clients_per_round": 2},
        {"strategy": FedNova(), "transforms": [ClipUpdate(0.2)]},
        {"strategy": FedLoss(examples=1.0), "client_validation": 0.3},
        {"strategy": FedLoss(), "client_validation": 0.3, "data": OneBroken},
        {"strategy": Scaffold(), "availability": Availability(0.4), "faults": Faults("skip"), "seed": 1},
        {"faults": Faults("skip"), "data": OneBroken},
        {"local": LocalTraining(engine="stacked", max_epochs=2)},
    ],
    ids=[
        "fedavg",
        "fedavgm",
        "fednova clipped",
        "fedloss",
        "fedloss rejects one",
        "drop-outs",
        "a client that fails",
        "stacked",
    ],
)
def test_a_federation_comes_to_the_same_bits(settings):
    finals, seen = [], []
    settings = dict(settings)
    validation, source = settings.pop("client_validation", 0.0), settings.pop("data", Blobs)
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module, updates = Plain(batchnorm="local" not in settings), Updates()
        options = {"secure_aggregation": secure, **settings}
        data = FederatedDataModule(source(), Consecutive(), client_validation=validation)
        trainer(3, FederatedOrchestrator(**{"local": LocalTraining(max_epochs=2), **options}), updates).fit(module, data)
        finals.append(weights(module))
        seen.append(updates.rounds)
    assert same_bits(*finals)
    assert [[u.client for u in r] for r in seen[0]] == [[u.client for u in r] for r in seen[1]]
    if "faults" in settings:
        assert min(len(r) for r in seen[1]) < 3


def test_scaffold_in_float64_comes_to_the_same_up_to_rounding():
    """Without masks, the sums of control variates have 43 bits."""
    finals = []
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module = Plain().double()
        federate(module, 3, data=Blobs(dtype=torch.float64), strategy=Scaffold(), secure_aggregation=secure)
        finals.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach())
    torch.testing.assert_close(*finals, rtol=0, atol=1e-12)


def test_bytes_are_those_of_masked_numbers_keys_and_shares():
    """Two limbs of 8 bytes a number, for the state and for the weight; keys and shares of 16 bytes."""
    updates = Updates()
    module = Plain()
    federate(module, 1, updates, secure_aggregation=SecureAggregation())
    parameters = sum(p.numel() for p in module.parameters())
    key, shares, help_ = 16, 2 * 2 * 16, 3 * 16
    assert {u.bytes_up for u in updates.rounds[0]} == {16 * (parameters + 1) + key + shares + help_}
    assert {u.bytes_down for u in updates.rounds[0]} == {4 * parameters + 2 * 16 + shares}


class NoWeight(FedAvg):
    """Weighs some clients by 0, so that they have other sums to send."""

    def weight(self, update):
        return 0.0 if update.client == 1 else 1.0


def test_a_strategy_that_gives_no_weight_is_named():
    with pytest.raises(ConfigurationError, match=r"needs the same sums from every client, but client \d sends .*no weight"):
        federate(Plain(), 1, strategy=NoWeight(), secure_aggregation=SecureAggregation())


def test_a_cohort_of_one_has_no_sum():
    with pytest.raises(ConfigurationError, match=r"'federation.clients_per_round' must be 2 clients or more with"):
        federate(Plain(), 1, clients_per_round=1, secure_aggregation=SecureAggregation())


def test_the_warm_start_would_bypass_it():
    """Its first rounds pass models from client to client."""
    for settings in ({"secure_aggregation": SecureAggregation()}, {"transforms": [ClipUpdate(0.1)]}):
        with pytest.raises(ConfigurationError, match="n the route WarmStart clients pass models to each other"):
            federate(Plain(), 1, route=WarmStart(1), strategy=FedAvg("uniform"), **settings)


def test_a_round_with_too_few_ends_the_run():
    options = {"secure_aggregation": SecureAggregation(1.0), "faults": Faults("skip"), "strategy": FedAvg()}
    with pytest.raises(ClientError, match=r"2 of 3 clients delivered, but removing the masks takes 3 or more. Lower"):
        federate(Plain(), 1, data=OneBroken(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "AdaFed weighs every client's model by its score at the server, but with 'federation.secure_aggregation'"),
        (["strategy=LastClient"], "LastClient keeps one client's model, but with 'federation.secure_aggregation'"),
        (["strategy=FedMedian"], "FedMedian needs every client's model to combine them"),
        (["strategy={class_path: Krum, init_args: {attackers: 1}}"], "Krum needs every client's model"),
        (["strategy=FedAvg", "route=FedCyclic"], "On the route FedCyclic clients pass models to each other or keep them"),
        (["strategy=FedAvg", "route=LocalOnly"], "On the route LocalOnly clients pass models to each other or keep them"),
        (["secure_aggregation=true"], "It takes settings, or null for none: {threshold: ...}."),
        (["attackers.backdoor=3"], "It takes settings, or null for none: {target: ..., share: ..., size: ..., value: ...}."),
        (
            ["strategy=FedAvg", "secure_aggregation.threshold=0.5"],
            "'federation.secure_aggregation.threshold' must be above 0.5 and",
        ),
    ],
)
def test_wrong_settings_are_named(fl, options, message):
    given_ = [f"--federation.{option}" for option in ("secure_aggregation={threshold: 0.6}", *options)]
    status, text = small(fl, *given_, "--model.init_args.loss=CrossEntropy")
    assert status in (1, 2), text
    assert message in text
    assert "Traceback" not in text
