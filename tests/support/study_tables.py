"""Small run tables whose every mean can be worked by hand, and the commands of studies as they are typed."""

import io
from contextlib import redirect_stderr, redirect_stdout
from itertools import product

import pytest

from fl_lightning.studies import ReportOptions, Row, RunTable
from fl_lightning.studies.commands import main
from fl_lightning.studies.page import Bold, Table

ACCURACY = {  # by strategy and seed: after rounds 0 to 3
    ("FedAvg", 0): [0.10, 0.50, 0.70, 0.60],
    ("FedAvg", 1): [0.20, 0.40, 0.60, 0.64],
    ("FedAvg", 2): [0.30, 0.60, 0.50, 0.62],
    ("AdaFed", 0): [0.20, 0.60, 0.80, 0.81],
    ("AdaFed", 1): [0.10, 0.50, 0.90, 0.86],
    ("AdaFed", 2): [0.30, 0.40, 0.70, 0.82],
}


def typed(*arguments: object) -> tuple[int, str]:
    """Type a command in this process, and return its exit status and what it printed."""
    said = io.StringIO()
    with pytest.raises(SystemExit) as end, redirect_stdout(said), redirect_stderr(said):
        main(list(map(str, arguments)))
    return int(end.value.code or 0), said.getvalue()


def table(partitions: tuple[str, ...] = ("paper",)) -> RunTable:
    """The same numbers for every partition, and costs of 1 MB up, 2 MB down and 3 s a round."""
    rows = []
    for partition in partitions:
        for (strategy, seed), values in ACCURACY.items():
            run = f"{strategy}-{partition}-{seed}"
            for round_idx, value in enumerate(values):
                logged = {
                    "val_accuracy": value,
                    "val_f1_macro": value / 2,
                    "val_f1/0": value,
                    "val_f1/1": value / 4,
                    "client_share/0": 0.25,
                    "client_share/10": 0.5,
                    "client_share/2": 0.25,
                    "federation/bytes_up": 1e6,
                    "federation/bytes_down": 2e6,
                    "federation/seconds": 3.0,
                }
                rows += [Row(run, (strategy, partition), seed, round_idx, name, x) for name, x in logged.items()]
            for true, counts in enumerate([[8.0, 2.0], [5.0, 15.0]]):
                rows += [Row(run, (strategy, partition), seed, 3, f"val_confusion/{true}/{k}", x) for k, x in enumerate(counts)]
            for client, counts in enumerate([[1.0, 0.0], [20.0, 30.0], [4.0, 0.0]]):
                rows += [Row(run, (strategy, partition), seed, 0, f"partition/{client}/{k}", x) for k, x in enumerate(counts)]
    return RunTable(["strategy", "partition"], rows)


def cells(made: Table) -> list[list[str]]:
    """The texts of a table, those in bold between asterisks."""
    return [[f"*{cell}*" if isinstance(cell, Bold) else cell for cell in row] for row in made.rows]


def everything() -> tuple[RunTable, ReportOptions]:
    """A study whose report has every kind of table, mark and note: a baseline, another set, two splits, a set-up, a clock."""
    known = {  # what is known of an algorithm
        "fedavg_mnist": {"server_set": "the validation set of D", "training": "100 %"},
        "AdaFed": {"server_set": "the validation set of D", "training": "90 %"},
        "FedBN": {"server_set": "the clients' own test parts", "training": "100 %"},
        "Centralized": {"server_set": "the validation set of D", "training": "100 %", "reference": "centralized"},
    }
    rows, facts = [], {}
    for (name, own), split, seed in product(known.items(), ("even", "skew"), range(3)):
        run, base = f"{name}-{split}-{seed}", "FedAvg" if name == "fedavg_mnist" else "AdaFed"
        for r, x in enumerate(ACCURACY[base, seed]):
            x = x - 0.05 * (split == "skew") + 0.01 * (name == "Centralized") + 0.02 * (name == "FedBN")
            logged = {
                "val_accuracy": x,
                "val_f1_macro": x / 2,
                "test_accuracy": x - 0.1,
                "federation/epsilon_of_clients": 1 + r,
            }
            logged |= {f"federation/{kind}": 1e6 * (r + 1) for kind in ("bytes_up", "bytes_down")}
            logged |= {"federation/seconds": 3.0, "federation/ticks": 10.0 * r + seed}
            logged |= {f"client_comparison/{client}/global": x for client in ("a", "b") if name == "FedBN"}
            rows += [Row(run, (name, split), seed, r, metric, value) for metric, value in logged.items()]
        settings = {"trainer.max_epochs": "4", "federation.strategy": name, "data.partitioner": f"{split}, 5 clients"}
        settings["federation.local.proximal_mu"] = "0.1" if name == "AdaFed" else "0.0"
        settings |= {"model.lr": "0.5"} if (name, split) == ("AdaFed", "skew") else {}
        server_set = f"{own['server_set']}, of {split}"
        facts[run] = own | {"partition": split, "code": f"0.{seed + 1}.0", "settings": settings, "server_set": server_set}
    options = {"every": 2, "after": 2, "targets": [0.65, 0.8], "beside": ["federation/epsilon_of_clients"], "title": "All"}
    return RunTable(["algorithm", "split"], rows, facts), ReportOptions(names={"FedBN": "FedBN, own layers"}, **options)


def of_curves(
    runs: dict[str, list[list[float]]],
    metric: str = "val_accuracy",
    axes: tuple[str, ...] = ("strategy",),
    facts: dict[str, dict[str, str]] | None = None,
) -> RunTable:
    """Runs by name (and a second choice after a bar): of each seed, the values of a metric over rounds; facts by name."""
    settings = {name: tuple(name.split("|")) if axes else () for name in runs}
    seeds = [(name, seed, values) for name, own in runs.items() for seed, values in enumerate(own)]
    rows = [Row(f"{n}-{seed}", settings[n], seed, r, metric, x) for n, seed, values in seeds for r, x in enumerate(values)]
    return RunTable(axes, rows, {f"{name}-{seed}": facts[name] for name, seed, _ in seeds} if facts else None)
