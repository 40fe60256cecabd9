"""Tables of a study in the layouts of the papers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fl_lightning.studies.layout import Cell, Table, spread, table_of, with_best
from fl_lightning.studies.run_table import RunTable, Setting
from fl_lightning.studies.statistics import (
    Curves,
    PairedTest,
    Sample,
    at_round,
    best,
    holm,
    last_rounds,
    paired_test,
    rounds_to,
)

_TICKS = "federation/ticks"


@dataclass(frozen=True)
class Measure:
    """Describe a metric of a report.

    Args:
        name: name as logged.
        higher: whether higher is better.
        percent: whether it is shown times 100.
        last: number of last rounds whose mean is the final value of a run.
        ranked: whether one value is better than another at all.
    """

    name: str = "val_accuracy"
    higher: bool = True
    percent: bool = True
    last: int = 1
    ranked: bool = True

    @property
    def scale(self) -> float:
        """Factor from logged to shown values."""
        return 100.0 if self.percent else 1.0

    @property
    def direction(self) -> bool | None:
        """Whether higher is better; None if neither direction is."""
        return self.higher if self.ranked else None

    @property
    def digits(self) -> int:
        """Number of digits after the decimal point."""
        return 2 if self.percent else 4


@dataclass(frozen=True)
class Panel:
    """Group settings that differ on one axis only, to compare them.

    Attributes:
        title: what the settings have in common.
        axis: axis on which they differ.
        settings: settings by their choice on that axis.
    """

    title: str
    axis: str
    settings: dict[str, Setting]

    @property
    def names(self) -> list[str]:
        """The names of the choices."""
        return list(self.settings)

    def curves(self, table: RunTable, metric: str) -> list[Curves]:
        """Return the curves of each setting."""
        return [table.curves(setting, metric) for setting in self.settings.values()]


def panels(table: RunTable, axis: str | None = None) -> list[Panel]:
    """Group the settings of a table by their choices on the other axes.

    Args:
        table: run table of a study.
        axis: axis whose choices are compared; by default the first.
    """
    place = table.axes.index(axis) if axis else 0
    found: dict[tuple[str, ...], dict[str, Setting]] = {}
    for setting in table.settings:
        others = setting[:place] + setting[place + 1 :]
        found.setdefault(others, {})[setting[place] if setting else "all"] = setting
    names = table.axes[:place] + table.axes[place + 1 :]
    titles = [", ".join(f"{name}: {choice}" for name, choice in zip(names, others, strict=True)) for others in found]
    compared = table.axes[place] if table.axes else "setting"
    return [Panel(title, compared, settings) for title, settings in zip(titles, found.values(), strict=True)]


def progress_table(table: RunTable, panel: Panel, measure: Measure, every: int) -> Table:
    """Tabulate mean ± std after every ``every`` rounds, the best value and the round of the best value (FedLoss thesis)."""
    curves = panel.curves(table, measure.name)
    length = max((max(curve) + 1 for by_seed in curves for curve in by_seed.values()), default=0)
    shown = sorted({*range(every, length + 1, every), length} - {0})
    columns = [[at_round(by_seed, number - 1) for by_seed in curves] for number in shown]
    tops = [best(by_seed, measure.higher) for by_seed in curves]
    columns += [[top for top, _ in tops], [when for _, when in tops]]
    directions = [measure.higher] * (len(shown) + 1) + [None]

    def show(sample: Sample, number: int) -> str:
        return spread(sample, digits=1) if number == len(shown) + 1 else spread(sample, measure.scale, measure.digits)

    heads = [*(f"round {number}" for number in shown), "best", "in round"]
    title = f"{measure.name}{' in percent' if measure.percent else ''} over rounds"
    note = f"Rounds are counted from 1. {_seeds(table, panel)}"
    return table_of(title, panel.axis, panel.names, heads, with_best(columns, directions, show), note)


def late_table(table: RunTable, panel: Panel, measure: Measure, after: int) -> Table | None:
    """Tabulate maximum, mean and variance of later rounds, averaged over seeds (FedNova thesis); None without such rounds."""
    columns: list[list[Sample]] = [[], [], []]
    for by_seed in panel.curves(table, measure.name):
        late = [[x * measure.scale for r, x in curve.items() if r >= after] for curve in by_seed.values()]
        late = [values for values in late if values]
        extreme = max if measure.higher else min
        columns[0].append(Sample(tuple(extreme(values) for values in late)))
        columns[1].append(Sample(tuple(statistics.fmean(values) for values in late)))
        columns[2].append(Sample(tuple(statistics.variance(values) for values in late if len(values) > 1)))
    if not any(sample.values for sample in columns[0]):
        return None
    body = with_best(columns, [measure.higher, measure.higher, False], lambda sample, _: spread(sample, digits=2))
    title = f"{measure.name}{' in percent' if measure.percent else ''} after round {after}"
    heads = ["maximum" if measure.higher else "minimum", "mean", "variance"]
    return table_of(title, panel.axis, panel.names, heads, body, "Each over the rounds of a run, then averaged over seeds.")


def final_table(table: RunTable, panel: Panel, measures: Sequence[Measure]) -> Table | None:
    """Tabulate metrics at the end of the runs (Fed-Star thesis: accuracy, macro and weighted F1); None if none was logged."""
    logged = [measure for measure in measures if any(panel.curves(table, measure.name))]
    if not logged:
        return None
    columns = [
        [Sample(tuple(last_rounds(curves, measure.last).values())) for curves in panel.curves(table, measure.name)]
        for measure in logged
    ]

    def show(sample: Sample, number: int) -> str:
        return spread(sample, logged[number].scale, logged[number].digits)

    heads = [f"{measure.name}{' in percent' if measure.percent else ''}" for measure in logged]
    last = logged[0].last
    note = "After the last round." if last == 1 else f"Mean of the last {last} rounds."
    body = with_best(columns, [measure.direction for measure in logged], show)
    return table_of("At the end", panel.axis, panel.names, heads, body, note)


def cost_table(table: RunTable, panel: Panel, measure: Measure, targets: Sequence[float]) -> Table:
    """Tabulate rounds, megabytes, seconds and ticks of a simulated clock, if any, to each target, and the totals of the run."""
    clock = any(panel.curves(table, _TICKS))
    units = [("MB", 0), ("s", 1), *([("ticks", 2)] if clock else [])]
    rows: list[list[Cell]] = []
    for setting in panel.settings.values():
        totals = _totals(table, setting)
        cells = []
        for target in targets:
            curves = table.curves(setting, measure.name)
            needed = dict(zip(curves, rounds_to(curves, target, measure.higher), strict=True))
            cells += _to_target(needed, totals, len(units))
        whole = [Sample(tuple(own[max(own)][k] for own in totals.values() if own)) for _, k in units]
        rows.append([*cells, *(Cell(spread(sample, digits=1)) for sample in whole)])
    sign = "≥" if measure.higher else "≤"
    heads = [
        f"{what} to {sign} {target * measure.scale:g}"
        for target in targets
        for what in ("rounds", *(unit for unit, _ in units))
    ]
    note = "MB: sent and received by all clients. s: training, scoring and aggregation, measured while other runs may run."
    note += " ticks: simulated time." if clock else ""
    return table_of("Cost", panel.axis, panel.names, [*heads, *(f"total {unit}" for unit, _ in units)], rows, note)


def _totals(table: RunTable, setting: Setting) -> dict[int, dict[int, tuple[float, float, float]]]:
    """Return megabytes, seconds and ticks up to and including each round, by seed and round."""
    up, down, seconds = (table.curves(setting, f"federation/{name}") for name in ("bytes_up", "bytes_down", "seconds"))
    ticks = table.curves(setting, _TICKS)
    totals: dict[int, dict[int, tuple[float, float, float]]] = {}
    for seed in table.seeds(setting):
        megabytes, time = 0.0, 0.0
        totals[seed] = {}
        for round_idx in up.get(seed, {}):
            megabytes += (up[seed][round_idx] + down.get(seed, {}).get(round_idx, 0.0)) / 1e6
            time += seconds.get(seed, {}).get(round_idx, 0.0)
            totals[seed][round_idx] = megabytes, time, ticks.get(seed, {}).get(round_idx, math.nan)
    return totals


def _to_target(
    needed: Mapping[int, int | None], totals: Mapping[int, Mapping[int, tuple[float, float, float]]], units: int
) -> list[Cell]:
    there = {seed: number for seed, number in needed.items() if number is not None}
    if not there:
        return [Cell("never"), *(Cell("-") for _ in range(units))]
    some = f" ({len(there)} of {len(needed)})" if len(there) < len(needed) else ""
    rounds = Sample(tuple(map(float, there.values())))
    reached = [totals[seed][number - 1] for seed, number in there.items() if number - 1 in totals.get(seed, {})]
    costs = [Sample(tuple(cost[k] for cost in reached)) for k in range(units)]
    return [Cell(spread(rounds, digits=1) + some), *(Cell(spread(cost, digits=1)) for cost in costs)]


def paired_table(table: RunTable, panel: Panel, measure: Measure, baseline: str | None = None) -> Table | None:
    """Test each setting against a baseline by a paired t-test over seeds with Holm's correction; None for one setting.

    The verdict is 'better' or 'worse' only if the corrected p is below 0.05.
    """
    against = baseline or panel.names[0]
    others = [name for name in panel.names if name != against]
    if not others:
        return None
    finals = {name: last_rounds(table.curves(panel.settings[name], measure.name), measure.last) for name in panel.names}
    tests = [paired_test(finals[name], finals.get(against, {})) for name in others]
    rows = []
    for test, p in zip(tests, holm([test.p for test in tests]), strict=True):
        rows.append([Cell(text) for text in (str(test.pairs), _difference(test, measure), _p(p), _verdict(test, p, measure))])
    note = "Difference of the final values with its 95 % confidence interval; p of the paired t-test, corrected by Holm."
    if against not in panel.settings:
        note = f"There are no runs of {against} here."
    title = f"{measure.name}{' in points' if measure.percent else ''} against {against}, paired over seeds"
    return table_of(title, panel.axis, others, ["seeds", "difference", "p", "verdict"], rows, note)


def _difference(test: PairedTest, measure: Measure) -> str:
    if math.isnan(test.difference):
        return "-"
    text = f"{test.difference * measure.scale:+.{measure.digits}f}"
    return text if math.isnan(test.half_width) else f"{text} ± {test.half_width * measure.scale:.{measure.digits}f}"


def _p(p: float) -> str:
    return "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(test: PairedTest, p: float, measure: Measure) -> str:
    if test.pairs < 2:
        return "too few seeds"
    if math.isnan(p):
        return "equal in every seed" if not test.difference else "no variance to test against"
    if p >= 0.05:
        return "no significant difference"
    return "better" if (test.difference > 0) == measure.higher else "worse"


def _seeds(table: RunTable, panel: Panel) -> str:
    numbers = sorted({len(table.seeds(setting)) for setting in panel.settings.values()})
    if numbers == [1]:
        return "One seed."
    return f"Mean ± standard deviation over {' to '.join(map(str, sorted({numbers[0], numbers[-1]})))} seeds."


def clients_table(table: RunTable, panel: Panel, measure: Measure) -> Table | None:
    """Tabulate local, global and personalised scores at each client (Fed-Star thesis, Table 5.8); None without them."""
    members = [tuple(member.rsplit("/", 1)) for member in table.families("client_comparison")]
    known = ("local only", "global", "own", "personalised", "gain")
    models = [model for model in known if any(own == model for _, own in members)]
    if not models:
        return None
    names, rows = [], []
    for client in dict.fromkeys(client for client, _ in members):
        for name, setting in panel.settings.items():
            curves = [table.curves(setting, f"client_comparison/{client}/{model}") for model in models]
            if not any(curves):  # a client of another panel's data
                continue
            names.append(f"{client}, {name}")
            samples = [Sample(tuple(last_rounds(curve).values())) for curve in curves]
            rows.append([Cell(spread(sample, measure.scale, measure.digits)) for sample in samples])
    title = f"Local, global, personalised{' in percent' if measure.percent else ''}"
    note = "On each client's own test part. The gain is the difference between the last model and the first."
    return table_of(title, f"client, {panel.axis}", names, models, rows, note)
