"""Tables of a study in the layouts of the papers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fl_lightning.studies.layout import Cell, Table, spread, table_of, with_best
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable, Setting
from fl_lightning.studies.statistics import (
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

    heads = [*(f"after {number} round{'s' * (number != 1)}" for number in shown), "best", "after rounds"]
    body = with_best(columns, directions, show, panel.compete(measure.name))
    note = f"{_seeds(table, panel)} Logs count rounds from 0. {panel.note(measure.name)}".rstrip()
    return table_of(f"{measure.title} over rounds", panel.axis, panel.rows(measure.name), heads, body, note)


def _variance(values: list[float]) -> float:
    """Return the sample variance; NaN if a value is NaN, at which Python 3.10's own raises."""
    return math.nan if any(map(math.isnan, values)) else statistics.variance(values)


def late_table(table: RunTable, panel: Panel, measure: Measure, after: int) -> Table | None:
    """Tabulate maximum, mean and variance of later rounds, averaged over seeds (FedNova thesis); None without such rounds."""
    columns: list[list[Sample]] = [[], [], []]
    for by_seed in panel.curves(table, measure.name):
        late = [[x * measure.scale for r, x in curve.items() if r >= after] for curve in by_seed.values()]
        late = [values for values in late if values]
        extreme = max if measure.higher else min
        columns[0].append(Sample(tuple(extreme(values) for values in late)))
        columns[1].append(Sample(tuple(statistics.fmean(values) for values in late)))
        columns[2].append(Sample(tuple(_variance(values) for values in late if len(values) > 1)))
    if not any(sample.values for sample in columns[0]):
        return None
    directions, compete = [measure.higher, measure.higher, False], panel.compete(measure.name)
    own = measure.digits
    digits = [own, own, own if measure.percent else own + 2]  # a variance has squared units
    body = with_best(columns, directions, lambda sample, number: spread(sample, digits=digits[number]), compete)
    heads = ["maximum" if measure.higher else "minimum", "mean", "variance"]
    note = f"Each over the rounds of a run, then averaged over seeds. {panel.note(measure.name)}".rstrip()
    return table_of(f"{measure.title} after the first {after} rounds", panel.axis, panel.rows(measure.name), heads, body, note)


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

    heads = [measure.label for measure in logged]
    last, first = logged[0].last, logged[0].name
    note = "After the last round." if last == 1 else f"Mean of the last {last} rounds."
    body = with_best(columns, [measure.direction for measure in logged], show, panel.compete(first))
    return table_of("At the end", panel.axis, panel.rows(first), heads, body, f"{note} {panel.note(first)}".rstrip())


def cost_table(table: RunTable, panel: Panel, measure: Measure, targets: Sequence[float]) -> Table | None:
    """Tabulate rounds, megabytes, seconds and ticks of a simulated clock, if any, to each target, and the totals of the run.

    Returns:
        The table, or None without targets if no run logged megabytes, of which ``keep`` may have left out the columns.
    """
    if not targets and not any(any(_totals(table, setting).values()) for setting in panel.settings.values()):
        return None
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
    return table_of("Cost", panel.axis, panel.rows(measure.name), [*heads, *(f"total {unit}" for unit, _ in units)], rows, note)


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


def paired_table(table: RunTable, panel: Panel, measure: Measure) -> Table | None:
    """Test each setting against a baseline by a paired t-test over seeds with Holm's correction; None for one setting.

    The verdict is 'better' or 'worse' only if the corrected p is below 0.05. A setting that is measured on another set than the
    baseline is not tested.
    """
    if panel.names == [panel.against]:
        return None
    finals = {name: last_rounds(table.curves(panel.settings[name], measure.name), measure.last) for name in panel.names}
    return paired_over(finals, panel, measure, panel.apart(measure.name))


def paired_over(
    finals: Mapping[str, Mapping[int, float]],
    panel: Panel,
    measure: Measure,
    apart: Mapping[str, str],
    over: str = "seed",
    more: str = "",
) -> Table:
    """Tabulate paired t-tests against a panel's baseline.

    Args:
        finals: the paired values by choice, then by seed or site.
        panel: names the choices and the baseline.
        measure: the metric.
        apart: the choices that are not tested, because they are measured on another set.
        over: the word for what the values are paired over.
        more: a further note.
    """
    against = panel.against
    others = [name for name in finals if name != against]
    tests = [paired_test({} if name in apart else finals[name], finals.get(against, {})) for name in others]
    rows = []
    for name, test, p in zip(others, tests, holm([test.p for test in tests]), strict=True):
        verdict = "not comparable" if name in apart else _verdict(test, p, measure, over)
        rows.append([Cell(text) for text in (str(test.pairs), _difference(test, measure), _p(p), verdict)])
    note = "Difference of the final values with its 95 % confidence interval; p of the paired t-test, corrected by Holm."
    if against not in finals:
        note = f"There are no runs of {panel.label(against)} here."
    unit = " in points" if measure.percent else ""
    title = f"{replace(measure, percent=False).title}{unit} against {panel.label(against)}, paired over {over}s"
    rows_of = dict(zip(panel.names, panel.rows(measure.name), strict=True))
    labels = [rows_of.get(name, panel.label(name)) for name in others]
    notes = (note, more, panel.note(measure.name))
    return table_of(title, panel.axis, labels, [f"{over}s", "difference", "p", "verdict"], rows, " ".join(filter(None, notes)))


def _difference(test: PairedTest, measure: Measure) -> str:
    if math.isnan(test.difference):
        return "-"
    text = f"{test.difference * measure.scale:+.{measure.digits}f}"
    return text if math.isnan(test.half_width) else f"{text} ± {test.half_width * measure.scale:.{measure.digits}f}"


def _p(p: float) -> str:
    return "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(test: PairedTest, p: float, measure: Measure, over: str) -> str:
    if test.pairs < 2:
        return f"too few {over}s"
    if math.isnan(p):
        return f"equal in every {over}" if not test.difference else "no variance to test against"
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
            curves = [table.of_clients(setting, f"client_comparison/{client}/{model}") for model in models]
            if not any(curves):  # a client of another panel's data
                continue
            names.append(f"{client}, {panel.label(name)}")
            samples = [Sample(tuple(last_rounds(curve).values())) for curve in curves]
            rows.append([Cell(spread(sample, measure.scale, measure.digits)) for sample in samples])
    title = f"Local, global, personalised{' in percent' if measure.percent else ''}"
    note = "On each client's own test part. The gain is the difference between the last model and the first."
    if not all(map(table.has_same_clients, panel.settings.values())):
        note += f" Seed {min(map(min, map(table.seeds, panel.settings.values())))}: the others divide the data differently."
    return table_of(title, f"client, {panel.axis}", names, models, rows, note)
