"""A small run table whose every mean can be worked by hand."""

from fl_lightning.studies import Row, RunTable
from fl_lightning.studies.layout import Bold, Table

ACCURACY = {  # by strategy and seed: after rounds 0 to 3
    ("FedAvg", 0): [0.10, 0.50, 0.70, 0.60],
    ("FedAvg", 1): [0.20, 0.40, 0.60, 0.64],
    ("FedAvg", 2): [0.30, 0.60, 0.50, 0.62],
    ("AdaFed", 0): [0.20, 0.60, 0.80, 0.81],
    ("AdaFed", 1): [0.10, 0.50, 0.90, 0.86],
    ("AdaFed", 2): [0.30, 0.40, 0.70, 0.82],
}


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


def runs_of(runs: dict[str, tuple[float, list[str]]], axes: tuple[str, ...] = ("algorithm",), seeds: int = 2) -> RunTable:
    """Runs of two rounds that end with an accuracy, by name (and a second choice after a bar), each with its facts.

    A fact is ``<kind>/<text>``, or ``setting <name>/<text>``.
    """
    rows, facts = [], {}
    for name, (accuracy, known) in runs.items():
        setting = tuple(name.split("|"))
        pairs = [fact.split("/", 1) for fact in known]
        own = {kind: text for kind, text in pairs if not kind.startswith("setting ")}
        settings = {kind.removeprefix("setting "): text for kind, text in pairs if kind.startswith("setting ")}
        for seed in range(seeds):
            for r, value in enumerate((0.1, accuracy + seed / 100)):
                rows.append(Row(f"{name}-{seed}", setting, seed, r, "val_accuracy", value))
            if known:
                facts[f"{name}-{seed}"] = own | ({"settings": settings} if settings else {})
    return RunTable(axes, rows, facts)


def cells(made: Table) -> list[list[str]]:
    """The texts of a table, those in bold between asterisks."""
    return [[f"*{cell}*" if isinstance(cell, Bold) else cell for cell in row] for row in made.rows]
