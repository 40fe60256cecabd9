"""Secure aggregation in a simulation: the masks cancel to the last bit, and no figure of one client is logged."""

import math
from functools import partial

import pytest
import torch
from against_hand import Updates
from federations import SIZES, Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from poisoning import OneBroken

from fl_lightning import (
    AdaFed,
    Availability,
    ClipUpdate,
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
    Scaffold,
    SecureAggregation,
)

SEVEN = (7, 5, 5, 5, 5, 5, 8)
"""The examples of seven clients, of which two may be lost."""


class NoWeight(FedAvg):
    """Weighs some clients by 0, who send as many words."""

    def weight(self, update):
        return 0.0 if update.client == 1 else 1.0


SETTINGS = {
    "fedavg": {},
    "no weight": {"strategy": NoWeight()},
    "fedavgm": {"strategy": FedAvgM(0.5, weighting="uniform"), "clients_per_round": 2},
    "feddyn": {"strategy": FedDyn()},
    "fedexp": {"strategy": FedExP()},
    "qfedavg": {"strategy": QFedAvg()},
    "adafed": {"strategy": AdaFed("val_loss", mode="min", scored_by="clients"), "client_validation": 0.3},
    "fednova clipped": {"strategy": FedNova(), "transforms": [ClipUpdate(0.2)]},
    "fedloss": {"strategy": FedLoss(examples=1.0), "client_validation": 0.3},
    "fedloss rejects one": {"strategy": FedLoss(), "client_validation": 0.3, "data": OneBroken},
    "drop-outs": {
        "strategy": Scaffold(),
        "availability": Availability(0.15),
        "faults": Faults("skip"),
        "seed": 1,
        "sizes": SEVEN,
    },
    "a client that fails": {"faults": Faults("skip"), "data": OneBroken, "sizes": SEVEN},
    "stacked": {"local": LocalTraining(engine="stacked", max_epochs=2)},
    "scaffold in float64": {"strategy": Scaffold(), "data": partial(Blobs, dtype=torch.float64)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_federation_comes_to_the_same_bits(name):
    finals, seen = [], []
    settings = {"local": LocalTraining(max_epochs=2), **SETTINGS[name]}
    validation, source = settings.pop("client_validation", 0.0), settings.pop("data", Blobs)
    sizes = settings.pop("sizes", SIZES)
    for secure in (None, SecureAggregation()):
        torch.manual_seed(0)
        module, updates = Plain(batchnorm=name != "stacked"), Updates()
        module = module.double() if "float64" in name else module
        data = FederatedDataModule(source(), Consecutive(sizes), client_validation=validation)
        trainer(3, FederatedOrchestrator(**settings, secure_aggregation=secure), updates).fit(module, data)
        finals.append(weights(module))
        seen.append(updates.rounds)
    assert same_bits(*finals)
    assert [[u.client for u in r] for r in seen[0]] == [[u.client for u in r] for r in seen[1]]
    if "faults" in settings:
        assert min(len(r) for r in seen[1]) < len(sizes)


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
