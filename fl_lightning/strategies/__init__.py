"""Provide strategies: how the server combines the clients' updates.

``ALGORITHMS`` is the one list of what the package implements. A strategy that has a line here is exported, a choice in YAML, in
``fl-lightning algorithms`` and, if a site may build it, accepted there; figures give it a colour of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Algorithm(NamedTuple):
    """Describe an algorithm in one line.

    Args:
        name: the name under which papers know it.
        line: what it does.
        config: the configuration of its name, ``<file>_<data>``.
        strategy: its class, in the module ``<file>``; empty if it is a route, an option or a setting of a strategy above.
        at_sites: whether sites of a real federation build the strategy for a server. Set it after looking at what the class
            computes from a site's rows, because that is what leaves with its tensors and numbers.
        page: where its section is, from ``docs/algorithms``; empty for the section of its name on the page of its group.
    """

    name: str
    line: str
    config: str
    strategy: str = ""
    at_sites: bool = False
    page: str = ""

    @property
    def file(self) -> str:
        """Return the name of its configuration without the data set."""
        return self.config.rpartition("_")[0]


ALGORITHMS: dict[str, tuple[Algorithm, ...]] = {
    "Averages and server optimizers": (
        Algorithm("FedAvg", "averages models, weighted by examples", "fedavg_mnist", "FedAvg", at_sites=True),
        Algorithm("FedSGD", "one gradient of each client per round", "fedsgd_mnist", "FedSGD", at_sites=True),
        Algorithm("FedAvgM", "momentum at the server", "fedavgm_mnist", "FedAvgM", at_sites=True),
        Algorithm("FedAdam", "Adam at the server, and any other torch optimizer", "fedadam_mnist", page="averages.md#fedopt"),
        Algorithm(
            "FedAdagrad",
            "Adagrad at the server, from tau^2",
            "fedadagrad_mnist",
            "FedAdagrad",
            at_sites=True,
            page="averages.md#fedopt",
        ),
        Algorithm("FedYogi", "Yogi at the server", "fedyogi_mnist", page="averages.md#fedopt"),
        Algorithm("FedExP", "a longer server step where clients disagree", "fedexp_mnist", "FedExP", at_sites=True),
        Algorithm("FedNova", "normalises updates by the clients' numbers of steps", "fednova_mnist", "FedNova", at_sites=True),
        Algorithm("KMeans", "federated k-means", "kmeans_simulated", "FederatedKMeans", page="../table_two.md#k-means"),
    ),
    "Weights by performance and fairness": (
        Algorithm("AdaFed", "weights by a metric, and a loss that adapts to F1", "adafed_mnist", "AdaFed", at_sites=True),
        Algorithm("FedLoss", "weights by the loss at home", "fedloss_mnist", "FedLoss", at_sites=True),
        Algorithm("Shapley values", "weights by marginal contributions", "shapley_mnist", "ShapleyValues", at_sites=True),
        Algorithm("FOCUS", "weights by credibility from cross evaluation", "focus_mnist", "Focus"),
        Algorithm("q-FedAvg", "weights by powers of the loss, for even accuracies", "qfedavg_mnist", "QFedAvg", at_sites=True),
        Algorithm("AFL", "weights that move to the worst mixture of clients", "afl_mnist", "AFL", at_sites=True),
    ),
    "Robust to wrong updates": (
        Algorithm("FedMedian", "the median of each coordinate", "fedmedian_mnist", "FedMedian", at_sites=True),
        Algorithm("Trimmed mean", "the mean without extremes", "trimmed_mean_mnist", "TrimmedMean", at_sites=True),
        Algorithm("Krum", "the model nearest to its neighbours", "krum_mnist", "Krum", at_sites=True),
        Algorithm("Multi-Krum", "the mean of the nearest models", "multi_krum_mnist", page="robust.md#krum"),
        Algorithm(
            "Geometric median", "the point of least total distance", "geometric_median_mnist", "GeometricMedian", at_sites=True
        ),
        Algorithm("Cosine filter", "drops updates that point elsewhere", "cosine_filter_mnist", "CosineFilter", at_sites=True),
        Algorithm("Attackers", "wrong labels, model attacks, backdoors", "adafed_attackers_mnist"),
    ),
    "Corrected clients": (
        Algorithm("FedProx", "a proximal term, and partial work", "fedprox_mnist"),
        Algorithm("SCAFFOLD", "control variates", "scaffold_mnist", "Scaffold", at_sites=True),
        Algorithm("MOON", "a contrast between the clients' representations", "moon_mnist", "MOON", at_sites=True),
        Algorithm("FedDyn", "a dynamic regulariser; a second model per client", "feddyn_mnist", "FedDyn", at_sites=True),
    ),
    "Personal models": (
        Algorithm("FedBN", "BatchNorm stays at each client", "fedbn_mnist"),
        Algorithm("FedPer", "the head stays at each client", "fedper_mnist"),
        Algorithm("LG-FedAvg", "the lower layers stay at each client", "lg_fedavg_mnist"),
        Algorithm("FedRep", "a head of each client, then the representation", "fedrep_mnist", "FedRep", at_sites=True),
        Algorithm("FedBABU", "a fixed head, fine-tuned at the end", "fedbabu_mnist", "FedBABU", at_sites=True),
        Algorithm("Ditto", "a second model of each client near the global one", "ditto_mnist", "Ditto", at_sites=True),
        Algorithm("pFedMe", "a second model of each client, which w follows", "pfedme_mnist", "PFedMe", at_sites=True),
        Algorithm("APFL", "a mixture of a model of each client and w", "apfl_mnist", "APFL", at_sites=True),
        Algorithm("MOCHA", "related linear models", "mocha_simulated"),
        Algorithm("Local only", "every client alone: a baseline", "local_only_mnist"),
    ),
    "Asynchronous rounds": (
        Algorithm("FedBuff", "a new model after every K updates that arrive", "fedbuff_mnist", "FedBuff", at_sites=True),
        Algorithm("FedAsync", "mixes each model in as soon as it arrives", "fedasync_mnist", "FedAsync", at_sites=True),
    ),
    "Routes between clients": (
        Algorithm("Fed-Cyclic", "one model passes through all clients", "fedcyclic_mnist"),
        Algorithm("Fed-Star", "clients exchange models by cross scores", "fedstar_mnist"),
        Algorithm("RingFed", "models mix with their neighbours in a ring", "ringfed_mnist"),
        Algorithm("Mediators", "groups of clients with complementary labels (Astraea)", "mediators_mnist"),
        Algorithm("Warm start", "a cyclic phase, then another route", "warm_start_mnist"),
        Algorithm("Last client", "the model of the last client: a baseline", "last_client_mnist", "LastClient", at_sites=True),
        Algorithm("Centralized", "no federation: a baseline", "centralized_mnist"),
    ),
    "Privacy and communication": (
        Algorithm(
            "Private clients",
            "clipping and noise for whole clients",
            "private_clients_mnist",
            page="../privacy.md#whole-clients",
        ),
        Algorithm("Private examples", "DP-SGD at the clients", "private_examples_mnist", page="../privacy.md#examples"),
        Algorithm("Secure sums", "masks that hide single updates", "secure_aggregation_mnist", page="../masks.md"),
        Algorithm(
            "Compression", "the largest changes, quantized", "compressed_mnist", page="../options.md#transforms-of-updates"
        ),
        Algorithm(
            "Clipped updates", "bounds the norm of each change", "clipped_mnist", page="../options.md#transforms-of-updates"
        ),
    ),
}
"""The algorithms by group. Everything is set in YAML, so most of them can be combined."""

STRATEGIES = tuple(one for group in ALGORITHMS.values() for one in group if one.strategy)
"""The algorithms with a class of their own."""
_HOME = {
    **dict.fromkeys(("JointStrategy", "ModelScorer", "RunningStrategy", "Strategy", "WeightedAverage"), "base"),
    "FilteringStrategy": "filtering",
    **{one.strategy: one.file for one in STRATEGIES},
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a class on first use, so that the list can be read without torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fl_lightning.strategies' has no attribute '{name}'")
    return getattr(import_module(f"fl_lightning.strategies.{_HOME[name]}"), name)
