"""Names as a reader writes them: of algorithms, metrics and partitions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fl_lightning.strategies import ALGORITHMS

_DATA_SET = re.compile(r"_(mnist|cifar10|simulated)$")
_FILE_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
_METRICS = {
    "f1_macro": "macro F1",
    "f1_weighted": "weighted F1",
    "mae": "mean absolute error",
    "mape": "mean absolute percentage error",
    "r2": "R²",
    "distance": "mean distance from the nearest centroid",
    "federation/client_mean": "mean over the clients' own test parts",
    "federation/client_worst": "worst client on its own test part",
    "federation/client_p10": "value that a tenth of the clients do worse than",
    "federation/unseen_mean": "mean over clients that never trained",
    "federation/unseen_worst": "worst client that never trained",
    "federation/epsilon_of_clients": "epsilon of a client",
    "federation/epsilon_of_examples": "epsilon of an example",
    "federation/clipping_norm": "clipping norm",
    "federation/noise_of_clients": "noise multiplier",
    "federation/noise_of_examples": "noise multiplier of steps",
    "federation/attacker_share": "attackers' share of the aggregate",
    "federation/attacker_auroc": "AUROC of the weights against attackers",
    "federation/backdoor_success": "success rate of the backdoor",
}
_PARTS = {"val": "validation ", "test": "test ", "train": "training "}
_PARTITIONERS = {
    "TablePartitioner": "given counts of each class",
    "QuantityPartitioner": "quantity skew",
    "ShardPartitioner": "shards",
    "ClassesPartitioner": "few classes per client",
    "DomainPartitioner": "one client for each domain",
    "AdaFedSimulation1": "AdaFed's Simulation 1",
}
_ALWAYS = (
    "data/examples/validated on/data.datamodule/data.datamodule.batch_size/data.partitioner/model/model.network/parameters/"
    "model.loss/model.optimizer/model.lr_scheduler/trainer.max_epochs/federation.local.max_epochs/"
    "federation.clients_per_round/federation.strategy/federation.route/federation.local.proximal_mu/precision/device/versions"
)
SETTINGS = tuple(_ALWAYS.split("/"))
"""Settings that a report names also where they have their defaults, in this order."""
_SETTINGS = {
    "data.datamodule": "data module",
    "data.partitioner": "partition",
    "model": "module",
    "model.lr_scheduler": "schedule",
    "trainer.max_epochs": "rounds",
    "federation.local.max_epochs": "local epochs",
}
"""Names of settings for readers; others are called by their last part."""
MODELS = ("local only", "global", "own", "personalised", "gain")
"""Columns of the table of clients: the models that are compared on a client's own test part."""
OF_CLIENTS = "On each client's own test part. The gain is the difference between the last model and the first."
COSTS = {
    "MB": "MB: sent and received by all clients.",
    "s": "s: training, scoring and aggregation, measured while other runs may run.",
    "ticks": "ticks: simulated time.",
}
"""The units of the table of costs, each with what it counts."""
_BESIDE = ("num_clients", "seed", "min_examples")
_USUAL = (("clients_per_domain", 1),)
"""Settings of partitioners that a name in words leaves out."""


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_KNOWN = {
    key: (one.name, group)
    for group, algorithms in ALGORITHMS.items()
    for one in algorithms
    for key in (_key(one.name), _key(_DATA_SET.sub("", one.config)))
}


def readable(choice: str) -> str:
    """Return a choice's name for readers: an algorithm's own, and a file's with spaces.

    >>> readable("fedavg_mnist"), readable("trimmed_mean"), readable("label_skew"), readable("AdaFed, weights only")
    ('FedAvg', 'Trimmed mean', 'label skew', 'AdaFed, weights only')
    """
    stem = _DATA_SET.sub("", choice)
    if _key(stem) in _KNOWN and stem == stem.lower() and " " not in stem:
        return _KNOWN[_key(stem)][0]
    return choice.replace("_", " ") if _FILE_NAME.fullmatch(choice) else choice


def _is_number(choice: str) -> bool:
    try:
        return math.isfinite(float(choice))
    except ValueError:
        return False


def setting_in_words(name: str) -> str:
    """Return a setting's or an axis's name for readers.

    >>> setting_in_words("federation.local.max_epochs"), setting_in_words("model.lr"), setting_in_words("clients differ in")
    ('local epochs', 'lr', 'clients differ in')
    """
    return _SETTINGS.get(name, (name.rsplit(".", 1)[-1] if " " not in name else name).replace("_", " "))


def label_of(axis: str, choice: str, choices: Iterable[str]) -> str:
    """Return a choice's name for readers, with the name of an axis of numbers.

    >>> label_of("learning_rate", "0.1", ["0.1", "1"]), label_of("split", "10", ["10", "IID"])
    ('learning rate = 0.1', '10')
    """
    return f"{setting_in_words(axis)} = {choice}" if all(map(_is_number, choices)) else readable(choice)


def family(label: str) -> str | None:
    """Return the group of an algorithm in ``fl-lightning algorithms``, also of variants such as ``AdaFed, weights only``."""
    parts = (label, label.partition(",")[0], label.partition(" x ")[0])
    return next((_KNOWN[_key(part)][1] for part in parts if _key(part) in _KNOWN), None)


def in_words(metric: str) -> str:
    """Return a metric's name in words; a name that is not known stays as it is.

    >>> in_words("val_f1_macro"), in_words("val/bleu"), in_words("my_metric")
    ('validation macro F1', 'validation bleu', 'my_metric')
    """
    if metric in _METRICS:
        return _METRICS[metric]
    for prefix, part in _PARTS.items():
        own = metric.removeprefix(prefix)
        if own != metric and own[:1] in ("_", "/") and "/" not in own[1:]:
            own = own[1:]
            return part + _METRICS.get(own, own.replace("_", " "))
    return metric


def class_name(part: Mapping[str, Any]) -> str:
    """Return the name of a class in a configuration, without its module."""
    return str(part["class_path"]).rsplit(".", 1)[-1]


def partition_in_words(partitioner: Mapping[str, Any] | None) -> str:
    """Return a partitioner in words: its kind, its settings, and the number of clients.

    >>> partition_in_words({"class_path": "fl_lightning.DirichletPartitioner", "init_args": {"num_clients": 9, "beta": 0.5}})
    'Dirichlet, beta 0.5, 9 clients'

    Args:
        partitioner: a class path and its arguments; None if each client has a dataset of its own.
    """
    if partitioner is None:
        return "one dataset for each client"
    name = class_name(partitioner)
    given = dict(partitioner.get("init_args") or {})
    words = [_PARTITIONERS.get(name, name.removesuffix("Partitioner"))]
    shown = {key: x for key, x in given.items() if isinstance(x, int | float | str) and not isinstance(x, bool)}
    words += [f"{key.replace('_', ' ')} {x}" for key, x in shown.items() if key not in _BESIDE and (key, x) not in _USUAL]
    clients = given.get("num_clients") or len(given.get("counts") or ())
    return ", ".join([*words, f"{clients} clients"] if clients else words)
