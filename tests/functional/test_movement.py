"""How far models move in a round, what rounds cost in all, and quantiles of many clients: closed forms."""

import csv
import math

import numpy as np
import pytest
import torch
from engine_runs import variant
from federations import SIZES, Blobs, Plain, federate
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger

import fl_lightning as fl
from fl_lightning.reporting.rounds import quantiles


class Watch(fl.FederationCallback):
    """The global model before each round, every client's model, and what was logged."""

    def __init__(self):
        self.starts, self.models, self.rounds, self.updates = [], [], [], []

    def on_round_start(self, trainer, pl_module, round_idx, cohort):
        self.starts.append(flat(pl_module))
        self.models.append({})

    def on_client_end(self, trainer, pl_module, update):
        self.models[-1][update.client] = update.state.double().numpy()[: len(self.starts[-1])]

    def on_aggregated(self, trainer, pl_module, updates):
        self.updates.append(updates)

    def on_round_end(self, trainer, pl_module, round_idx):
        known = trainer.callback_metrics
        self.rounds.append({n.removeprefix("federation/"): float(x) for n, x in known.items() if n.startswith("federation/")})


def flat(module):
    return np.concatenate([p.detach().double().numpy().ravel() for p in module.parameters() if p.requires_grad])


def seeded():
    torch.manual_seed(3)
    return Plain()


def watched(rounds=2, **settings):
    watch = Watch()
    federate(seeded(), rounds, watch, **settings)
    return watch


@pytest.mark.parametrize("strategy", [fl.FedAvg(), fl.FedAvg(weighting="uniform"), fl.Scaffold()])
def test_norms_and_drift_by_hand(strategy):
    """``|w_k - w_t|``, their mean, ``|average - w_t|``, and the root mean square distance from the average."""
    watch = watched(strategy=strategy)
    uniform = not (isinstance(strategy, fl.FedAvg) and strategy.weighting == "examples")
    shares = np.full(3, 1 / 3) if uniform else np.array(SIZES) / sum(SIZES)
    for start, models, logged, updates in zip(watch.starts, watch.models, watch.rounds, watch.updates, strict=True):
        changes = np.stack([models[k] - start for k in range(3)])
        norms = np.linalg.norm(changes, axis=1)
        average = shares @ changes
        assert [update.update_norm for update in updates] == pytest.approx(norms, rel=1e-6)
        assert logged["update_norm"] == pytest.approx(norms.mean(), rel=1e-6)
        assert logged["aggregate_norm"] == pytest.approx(np.linalg.norm(average), rel=1e-5)
        spread = math.sqrt(shares @ np.square(changes - average).sum(axis=1))
        assert logged["drift"] == pytest.approx(spread, rel=1e-5)
        assert spread > 0.01


@pytest.mark.parametrize("settings", [{"clients_per_round": 1}, {"route": fl.Mediators(clients_per_mediator=3)}])
def test_one_client_or_one_chain_does_not_drift(settings):
    """A chain moves as a whole: what its clients hand over counts for each of them."""
    watch = watched(1, **settings)
    (logged,) = watch.rounds
    assert len({update.update_norm for update in watch.updates[0]}) == 1
    assert logged["aggregate_norm"] == pytest.approx(logged["update_norm"], rel=1e-5)
    assert logged["drift"] < 1e-3 * logged["update_norm"]


def test_norms_are_of_what_the_server_gets():
    """The second: a client's noise alone has norm ``z C sqrt(p)`` on average, and the noisy message is what is logged."""
    (logged,) = (watch := watched(1, transforms=[fl.ClipUpdate(0.01)])).rounds
    assert [update.update_norm for update in watch.updates[0]] == pytest.approx([0.01] * 3, rel=1e-4)
    assert logged["update_norm"] == pytest.approx(0.01, rel=1e-4)
    watch = watched(1, transforms=[fl.ClientPrivacy(0.1, 5.0, noise="local", noise_seed=1)])
    for update in watch.updates[0]:
        assert update.update_norm == pytest.approx(0.5 * math.sqrt(len(watch.starts[0])), rel=0.3)


def test_what_the_server_must_not_see_is_not_logged():
    watch = watched(1, transforms=[fl.ClientPrivacy(0.1, 1.0, noise_seed=1)], strategy=fl.FedAvg(weighting="uniform"))
    assert watch.rounds[0]["aggregate_norm"] > 0
    assert not {"update_norm", "drift"} & watch.rounds[0].keys()
    assert all(update.update_norm is None for update in watch.updates[0])


def test_totals_by_hand():
    """67 parameters of 4 bytes to and from 3 clients."""
    rounds = watched(3).rounds
    assert [logged["megabytes_total"] for logged in rounds] == pytest.approx([(k + 1) * 67 * 4 * 6 / 1e6 for k in range(3)])
    assert [logged["seconds_total"] for logged in rounds] == pytest.approx(np.cumsum([x["seconds"] for x in rounds]), rel=1e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_quantiles_are_numpys(values):
    figures = {f"client_loss/{client}": value for client, value in enumerate(values)} | {"federation/clients": 3.0}
    found = quantiles(figures)
    expected = np.quantile(values, [0, 0.1, 0.5, 0.9, 1])
    assert [found[f"client_loss/{name}"] for name in ("min", "p10", "median", "p90", "max")] == pytest.approx(expected)
    assert found["federation/clients"] == 3.0
    assert len(found) == 6


def test_many_clients_are_logged_as_quantiles(tmp_path):
    """Above the limit in every logger, and no figure of a module's own with a number in its name is taken for a client's."""

    per_class = variant(training_step=lambda self, *batch: self.log("train_f1/3", 0.5) or Plain.training_step(self, *batch))
    for clients, columns in ((21, ["max", "median", "min", "p10", "p90"]), (20, sorted(map(str, range(20))))):
        flags = {"logger": CSVLogger(tmp_path, name="", version=str(clients))}
        federate(per_class(), 1, data=Blobs(42), partitioner=fl.IIDPartitioner(clients), flags=flags)
        (header, *_) = csv.reader((tmp_path / str(clients) / "metrics.csv").read_text().splitlines())
        assert sorted(name.rpartition("/")[2] for name in header if name.startswith("client_loss/")) == columns
        assert "train_f1/3" in header
