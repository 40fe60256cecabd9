"""The command ``fl-lightning algorithms``: list every algorithm with a line, its configuration and its page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from posixpath import normpath
from typing import NamedTuple

from fl_lightning.errors import did_you_mean


class Algorithm(NamedTuple):
    """Describe an algorithm in one line.

    Args:
        name: the name under which papers know it.
        line: what it does.
        config: the configuration of its name.
        page: the page and its section, from ``docs/algorithms``.
    """

    name: str
    line: str
    config: str
    page: str


ALGORITHMS: dict[str, tuple[Algorithm, ...]] = {
    "Averages and server optimizers": (
        Algorithm("FedAvg", "averages models, weighted by examples", "fedavg_mnist", "averages.md#fedavg"),
        Algorithm("FedSGD", "one gradient of each client per round", "fedsgd_mnist", "averages.md#fedsgd"),
        Algorithm("FedAvgM", "momentum at the server", "fedavgm_mnist", "averages.md#fedavgm"),
        Algorithm("FedAdam", "Adam at the server, and any other torch optimizer", "fedadam_mnist", "averages.md#fedopt"),
        Algorithm("FedAdagrad", "Adagrad at the server, from tau^2", "fedadagrad_mnist", "averages.md#fedopt"),
        Algorithm("FedYogi", "Yogi at the server", "fedyogi_mnist", "averages.md#fedopt"),
        Algorithm("FedExP", "a longer server step where clients disagree", "fedexp_mnist", "averages.md#fedexp"),
        Algorithm("FedNova", "normalises updates by the clients' numbers of steps", "fednova_mnist", "averages.md#fednova"),
        Algorithm("KMeans", "federated k-means", "kmeans_simulated", "../table_two.md#k-means"),
    ),
    "Weights by performance and fairness": (
        Algorithm("AdaFed", "weights by a metric, and a loss that adapts to F1", "adafed_mnist", "weights.md#adafed"),
        Algorithm("FedLoss", "weights by the loss at home", "fedloss_mnist", "weights.md#fedloss"),
        Algorithm("Shapley values", "weights by marginal contributions", "shapley_mnist", "weights.md#shapley-values"),
        Algorithm("FOCUS", "weights by credibility from cross evaluation", "focus_mnist", "weights.md#focus"),
        Algorithm("q-FedAvg", "weights by powers of the loss, for even accuracies", "qfedavg_mnist", "weights.md#q-fedavg"),
        Algorithm("AFL", "weights that move to the worst mixture of clients", "afl_mnist", "weights.md#afl"),
    ),
    "Robust to wrong updates": (
        Algorithm("FedMedian", "the median of each coordinate", "fedmedian_mnist", "robust.md#fedmedian"),
        Algorithm("Trimmed mean", "the mean without extremes", "trimmed_mean_mnist", "robust.md#trimmed-mean"),
        Algorithm("Krum", "the model nearest to its neighbours", "krum_mnist", "robust.md#krum"),
        Algorithm("Multi-Krum", "the mean of the nearest models", "multi_krum_mnist", "robust.md#krum"),
        Algorithm(
            "Geometric median", "the point of least total distance", "geometric_median_mnist", "robust.md#geometric-median"
        ),
        Algorithm("Cosine filter", "drops updates that point elsewhere", "cosine_filter_mnist", "robust.md#cosine-filter"),
        Algorithm("Attackers", "wrong labels, model attacks, backdoors", "adafed_attackers_mnist", "robust.md#attackers"),
    ),
    "Corrected clients": (
        Algorithm("FedProx", "a proximal term, and partial work", "fedprox_mnist", "clients.md#fedprox"),
        Algorithm("SCAFFOLD", "control variates", "scaffold_mnist", "clients.md#scaffold"),
        Algorithm("MOON", "a contrast between the clients' representations", "moon_mnist", "clients.md#moon"),
        Algorithm("FedDyn", "a dynamic regulariser; a second model per client", "feddyn_mnist", "clients.md#feddyn"),
    ),
    "Personal models": (
        Algorithm("FedBN", "BatchNorm stays at each client", "fedbn_mnist", "personal.md#fedbn"),
        Algorithm("FedPer", "the head stays at each client", "fedper_mnist", "personal.md#fedper"),
        Algorithm("LG-FedAvg", "the lower layers stay at each client", "lg_fedavg_mnist", "personal.md#lg-fedavg"),
        Algorithm("FedRep", "a head of each client, then the representation", "fedrep_mnist", "personal.md#fedrep"),
        Algorithm("FedBABU", "a fixed head, fine-tuned at the end", "fedbabu_mnist", "personal.md#fedbabu"),
        Algorithm("Ditto", "a second model of each client near the global one", "ditto_mnist", "personal.md#ditto"),
        Algorithm("pFedMe", "a second model of each client, which w follows", "pfedme_mnist", "personal.md#pfedme"),
        Algorithm("APFL", "a mixture of a model of each client and w", "apfl_mnist", "personal.md#apfl"),
        Algorithm("MOCHA", "related linear models", "mocha_simulated", "personal.md#mocha"),
        Algorithm("Local only", "every client alone: a baseline", "local_only_mnist", "personal.md#local-only"),
    ),
    "Asynchronous rounds": (
        Algorithm("FedBuff", "a new model after every K updates that arrive", "fedbuff_mnist", "asynchronous.md#fedbuff"),
        Algorithm("FedAsync", "mixes each model in as soon as it arrives", "fedasync_mnist", "asynchronous.md#fedasync"),
    ),
    "Routes between clients": (
        Algorithm("Fed-Cyclic", "one model passes through all clients", "fedcyclic_mnist", "routes.md#fed-cyclic"),
        Algorithm("Fed-Star", "clients exchange models by cross scores", "fedstar_mnist", "routes.md#fed-star"),
        Algorithm("RingFed", "models mix with their neighbours in a ring", "ringfed_mnist", "routes.md#ringfed"),
        Algorithm(
            "Mediators", "groups of clients with complementary labels (Astraea)", "mediators_mnist", "routes.md#mediators"
        ),
        Algorithm("Warm start", "a cyclic phase, then another route", "warm_start_mnist", "routes.md#warm-start"),
        Algorithm("Last client", "the model of the last client: a baseline", "last_client_mnist", "routes.md#last-client"),
        Algorithm("Centralized", "no federation: a baseline", "centralized_mnist", "routes.md#centralized"),
    ),
    "Privacy and communication": (
        Algorithm(
            "Private clients", "clipping and noise for whole clients", "private_clients_mnist", "../privacy.md#whole-clients"
        ),
        Algorithm("Private examples", "DP-SGD at the clients", "private_examples_mnist", "../privacy.md#examples"),
        Algorithm("Secure sums", "masks that hide single updates", "secure_aggregation_mnist", "../masks.md"),
        Algorithm("Compression", "the largest changes, quantized", "compressed_mnist", "../transforms.md"),
        Algorithm("Clipped updates", "bounds the norm of each change", "clipped_mnist", "../transforms.md"),
    ),
}
"""The algorithms by group. Everything is set in YAML, so most of them can be combined."""


def main(arguments: Sequence[str]) -> None:
    """Print the list; an argument keeps the algorithms whose line contains it, and exit status 1 means that none does.

    Args:
        arguments: the arguments after ``algorithms``.
    """
    if arguments[:1] in (["-h"], ["--help"]) or len(arguments) > 1:
        print("usage: fl-lightning algorithms [TEXT]    list the algorithms, or those whose line contains the text")
        sys.exit(0 if len(arguments) == 1 else 2)
    wanted = arguments[0] if arguments else ""
    text = listing(wanted)
    if not text:
        names = [one.name for group in ALGORITHMS.values() for one in group]
        print(f"fl-lightning: error: No algorithm matches '{wanted}'.{did_you_mean(wanted, names)}", file=sys.stderr)
        sys.exit(1)
    print(text)


def listing(wanted: str = "") -> str:
    """Return a line for each algorithm that contains a text, by group; an empty string if no algorithm does."""
    lines: list[str] = []
    for group, algorithms in ALGORITHMS.items():
        rows = [_row(one) for one in algorithms if wanted.lower() in _row(one).lower()]
        lines += [f"{group}:", *rows, ""] if rows else []
    return (
        "\n".join([*lines, "Run one: fl-lightning fit --config NAME. Any module and data: change one block."]) if lines else ""
    )


def _row(one: Algorithm) -> str:
    page = normpath(f"docs/algorithms/{one.page}")
    return f"  {one.name:<17} {one.line:<54} {one.config:<25} {page}"
