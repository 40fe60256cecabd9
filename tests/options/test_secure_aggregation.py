"""Secure aggregation in a simulation: the masks cancel to the last bit, and no figure of one client is logged."""

from __future__ import annotations

import math

import pytest
import torch
from against_hand import Updates
from command_line import small
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, trainer, weights

from fl_lightning import (
    AFL,
    AdaFed,
    Availability,
    ClientError,
    ClipUpdate,
    ConfigurationError,
    Faults,
    FedAvg,
    FedAvgM,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    FedExP,
    FedLoss,
    FedNova,
    LocalTraining,
    QFedAvg,
    RunningStrategy,
    Scaffold,
    SecureAggregation,
    WarmStart,
)

SEVEN = (7, 5, 5, 5, 5, 5, 8)
"""The examples of seven clients, of which two may be lost."""


class OneBroken(Blobs):
    def __init__(self):
        super().__init__()
        self.train[0][: SIZES[0]] = torch.nan


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": FedAvgM(0.5, weighting="uniform"), "clients_per_round": 2},
        {"strategy": FedDyn()},
        {"strategy": FedExP()},
        {"strategy": QFedAvg()},
        {"strategy": AdaFed("val_loss", mode="min", scored_by="clients"), "client_validation": 0.3},
        {"strategy": FedNova(), "transforms": [ClipUpdate(0.2)]},
        {"strategy": FedLoss(examples=1.0), "client_validation": 0.3},
        {"strategy": FedLoss(), "client_validation": 0.3, "data": OneBroken},
        {"strategy": Scaffold(), "availability": Availability(0.15), "faults": Faults("skip"), "seed": 1, "sizes": SEVEN},
        {"faults": Faults("skip"), "data": OneBroken, "sizes": SEVEN},
        {"local": LocalTraining(engine="stacked", max_epochs=2)},
    ],
    ids=[
        "fedavg",
        "fedavgm",
        "feddyn",
        "fedexp",
        "qfedavg",
        "adafed",
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
    sizes = settings.pop("sizes", SIZES)
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module, updates = Plain(batchnorm="local" not in settings), Updates()
        options = {"secure_aggregation": secure, **settings}
        data = FederatedDataModule(source(), Consecutive(sizes), client_validation=validation)
        trainer(3, FederatedOrchestrator(**{"local": LocalTraining(max_epochs=2), **options}), updates).fit(module, data)
        finals.append(weights(module))
        seen.append(updates.rounds)
    assert same_bits(*finals)
    assert [[u.client for u in r] for r in seen[0]] == [[u.client for u in r] for r in seen[1]]
    if "faults" in settings:
        assert min(len(r) for r in seen[1]) < len(sizes)


def test_scaffold_in_float64_comes_to_the_same_bits():
    finals = []
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module = Plain().double()
        federate(module, 3, data=Blobs(dtype=torch.float64), strategy=Scaffold(), secure_aggregation=secure)
        finals.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach())
    assert torch.equal(*finals)


def test_bytes_are_those_of_masked_words_keys_and_shares():
    """A word for each of the p parameters, two for the weight, the loss and its examples, 8 bytes each.

    Up: three keys and a signature, two sealed shares for each other, a signature of the list, and a share about each client.
    Down: the others' keys, their shares, and the signatures of the list. Keys, and shares up, are those of the next round; in
    the first round, also its own.
    """
    updates = Updates()
    module = Plain()
    federate(module, 2, updates, secure_aggregation=SecureAggregation())
    parameters = sum(p.numel() for p in module.parameters())
    announcement, sealed, signature, share = 3 * 32 + 96, 2 * 33 + 16, 96, 33
    up = 8 * (parameters + 2 + 4) + announcement + 2 * sealed + signature + 3 * share
    assert {u.bytes_up for u in updates.rounds[0]} == {up + announcement + 2 * sealed}
    assert {u.bytes_up for u in updates.rounds[1]} == {up}
    down = 4 * parameters + 2 * (announcement + sealed + signature)
    assert {u.bytes_down for u in updates.rounds[0]} == {down + 2 * announcement}
    assert {u.bytes_down for u in updates.rounds[1]} == {down}


class NoWeight(FedAvg):
    """Weighs some clients by 0."""

    def weight(self, update):
        return 0.0 if update.client == 1 else 1.0


def test_a_client_without_weight_sends_as_many_words():
    finals = []
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module = Plain()
        federate(module, 2, strategy=NoWeight(), secure_aggregation=secure)
        finals.append(weights(module))
    assert same_bits(*finals)


class Nothing(FedAvg):
    """Weighs everyone by 0."""

    def weight(self, update):
        return 0.0


def test_no_weight_at_all_is_named():
    with pytest.raises(ClientError, match=r"Nothing gave all clients of the round the weight 0, and masks hide their models"):
        federate(Plain(), 1, strategy=Nothing(), secure_aggregation=SecureAggregation())


class Unannounced(FedAvg):
    """Adds a sum that it does not announce."""

    def accumulate(self, update, sums):
        sums.add("squares", 1.0)
        return super().accumulate(update, sums)


class Silent(RunningStrategy):
    """Does not say what it adds up."""

    def accumulate(self, update, sums):
        sums.add("state", update.state)
        sums.add("clients", 1.0)
        return 1.0

    def aggregate(self, sums):
        return sums.take("state").div_(sums.scalar("clients"))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Silent, r"Silent does not say which sums it adds up, so clients cannot mask them. Use FedAvg.*from 'sum_sizes'"),
        (AFL, r"AFL does not say which sums it adds up"),
        (Unannounced, r"adds 1 numbers to a sum 'squares', which its 'sum_sizes' does not announce"),
    ],
)
def test_a_strategy_that_masks_do_not_know_is_named(strategy, message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 1, strategy=strategy(), secure_aggregation=SecureAggregation())


class Counting(Plain):
    """Counts its own batches in a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


def test_whole_numbers_of_single_clients_are_refused():
    """The server would compare them, so it would see each client's."""
    with pytest.raises(ConfigurationError, match=r"The module has a buffer 'seen' of whole numbers, which cannot be added"):
        federate(Counting(), 1, secure_aggregation=SecureAggregation())


def test_no_figure_of_one_client_is_known_and_the_loss_of_all_is():
    """The mean loss is that of the run without masks; the metrics that the module logs, norms and times stay."""
    losses, rounds = [], []
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        updates, module = Updates(), Plain()
        fit = federate(module, 2, updates, secure_aggregation=secure)
        losses.append(float(fit.callback_metrics["federation/loss"]))
        rounds.append(updates.rounds)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for update in (update for one in rounds[1] for update in one):
        assert update.train_loss is update.update_norm is update.local_score is None
        assert (update.metrics, update.seconds, update.optimizer) == ({}, 0.0, "")
        assert math.isnan(update.weight)


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
        (
            ["strategy=FedAvg", "client_evaluation={every_n_rounds: 1}"],
            "'federation.client_evaluation' measures each client, but with 'federation.secure_aggregation'",
        ),
        (["secure_aggregation=true"], "It takes settings, or null for none: {threshold: ...}."),
        (["attackers.backdoor=3"], "It takes settings, or null for none: {target: ..., share: ..., size: ..., value: ...}."),
        (
            ["strategy=FedAvg", "secure_aggregation.threshold=0.5"],
            "'federation.secure_aggregation.threshold' must be above 2/3 and",
        ),
    ],
)
def test_wrong_settings_are_named(fl, options, message):
    given_ = [f"--federation.{option}" for option in ("secure_aggregation={threshold: 0.67}", *options)]
    status, text = small(fl, *given_, "--model.init_args.loss=CrossEntropy")
    assert status in (1, 2), text
    assert message in text
    assert "Traceback" not in text
