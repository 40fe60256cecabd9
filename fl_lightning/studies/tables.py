"""Tables of a study in the layouts of the papers: means over seeds, paired tests, costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from fl_lightning.studies.names import COSTS, MODELS, OF_CLIENTS
from fl_lightning.studies.page import Bold, Table
from fl_lightning.studies.panels import Measure, Panel, together
from fl_lightning.studies.run_table import RunTable

_TICKS = "federation/ticks"
_ROUNDING = 2e-6
"""Tolerance for equal differences: tables have 6 digits, and rounding is not spread."""


# ---------------------------------------------------------------- numbers over seeds


def finite(curves: pd.DataFrame) -> pd.DataFrame:
    """Return curves, see :meth:`RunTable.curves`, without the values that are not finite."""
    return curves.mask(curves == math.inf)


def deviation(values: pd.DataFrame) -> pd.Series:
    """Return the sample's standard deviation (n - 1) of each row; NaN for one value, or if one is not finite."""
    with np.errstate(invalid="ignore"):
        return values.std(axis=1)


def at_round(curves: pd.DataFrame, round_idx: int) -> pd.Series:
    """Return a metric after one round, by seed."""
    return curves.reindex([round_idx]).iloc[0].dropna()


def last_rounds(curves: pd.DataFrame, count: int = 1) -> pd.Series:
    """Return the mean of the last rounds that a seed has, by seed."""
    return curves.apply(lambda own: own.dropna().tail(count).mean()).astype(float)


def best(curves: pd.DataFrame, higher: bool) -> tuple[pd.Series, pd.Series]:
    """Return the best finite value of each seed's curve, and the round (from 1) that first reached it."""
    own = finite(curves).dropna(axis=1, how="all")
    return (own.max(), own.idxmax() + 1) if higher else (own.min(), own.idxmin() + 1)


def rounds_to(curves: pd.DataFrame, target: float, higher: bool) -> pd.Series:
    """Return the rounds, counted from 1, until a seed first reaches the target; without the seeds that never do."""
    there = finite(curves) >= target if higher else finite(curves) <= target
    return there.loc[:, there.any()].idxmax() + 1


class Paired(NamedTuple):
    """Hold the comparison of one setting with another over the seeds that both have.

    Attributes:
        pairs: number of pairs.
        difference: mean of the differences.
        half_width: half width of the mean's 95 % confidence interval; NaN for one pair.
        p: two-sided p of the paired t-test; NaN if the differences do not vary.
    """

    pairs: int
    difference: float
    half_width: float = math.nan
    p: float = math.nan


def paired_test(one: pd.Series, other: pd.Series) -> Paired:
    """Run Student's paired t-test of ``one - other``.

    Args:
        one: value for each seed.
        other: value for each seed; seeds that only one of both has, or whose value is not finite, are left out.
    """
    both = pd.concat([one, other], axis=1, join="inner")
    both = both[np.isfinite(both).all(axis=1)]
    difference = both.iloc[:, 0] - both.iloc[:, 1]
    if len(both) < 2:
        return Paired(len(both), difference.mean())
    if difference.std() <= _ROUNDING * both.abs().max(axis=None):
        return Paired(len(both), difference.mean(), 0.0)
    test = stats.ttest_rel(both.iloc[:, 0], both.iloc[:, 1])
    low, high = test.confidence_interval(0.95)
    return Paired(len(both), difference.mean(), (high - low) / 2, test.pvalue)


def holm(p_values: pd.Series) -> pd.Series:
    """Correct p-values for multiple tests (Holm 1979): the k-th smallest of m is multiplied by m - k + 1, never decreasing.

    NaN stays NaN and is not counted.
    """
    known = p_values.dropna().sort_values()
    return (known * np.arange(len(known), 0, -1)).clip(upper=1).cummax().reindex(p_values.index)


# ---------------------------------------------------------------- cells


class Column(NamedTuple):
    """Describe a column of a table.

    Attributes:
        head: its heading.
        values: the values over seeds of each row.
        higher: whether higher is better, so that the best is in bold; None if nothing is.
        scale: factor from logged to shown values.
        digits: number of digits after the decimal point.
        seeds: the number of seeds of each row, if a row without some of their values says so.
    """

    head: str
    values: Sequence[pd.Series]
    higher: bool | None = None
    scale: float = 1.0
    digits: int = 1
    seeds: Sequence[int] = ()

    @classmethod
    def of(cls, measure: Measure, head: str, values: Sequence[pd.Series]) -> Column:
        """Return a column of a metric."""
        return cls(head, values, measure.higher if measure.ranked else None, measure.scale, measure.digits)

    def cells(self, compete: Sequence[bool]) -> list[str]:
        """Return mean and, over several seeds, standard deviation of each row, with the best mean in bold (all if tied)."""
        values = pd.DataFrame([dict(enumerate(own)) for own in self.values], dtype=float)
        # Exactly rounded, so that equal values have equal means and the last digit does not depend on the order of seeds.
        mean = values.apply(lambda own: statistics.fmean(own.dropna()) if own.count() else math.nan, axis=1)
        able = mean[np.isfinite(mean) & np.array(compete, dtype=bool)]
        top = math.nan if self.higher is None or len(able) < 2 else able.max() if self.higher else able.min()
        found, seeds = [], self.seeds or [0] * len(values)
        for own, std, count, of, competes in zip(mean, deviation(values), values.count(axis=1), seeds, compete, strict=True):
            numbers = (f"{x * self.scale:.{self.digits}f}" if math.isfinite(x) else "nan" for x in (own, std)[: min(count, 2)])
            text = " ± ".join(numbers) or ("never" if self.seeds else "-")
            is_best = competes and math.isclose(own, top, rel_tol=1e-6)  # metrics are logged in float32
            found.append((Bold if is_best else str)(f"{text} ({count} of {of})" if 0 < count < of else text))
        return found


def table_of(
    title: str, first: str, names: Sequence[str], columns: Sequence[Column], compete: Sequence[bool], note: str
) -> Table:
    """Return a table with a name at the head of each row."""
    body = zip(names, *(column.cells(compete) for column in columns), strict=True)
    return Table(title, (first, *(column.head for column in columns)), list(body), note)


def _of_panel(title: str, panel: Panel, metric: str, columns: Sequence[Column], note: str) -> Table:
    note = f"{note} {panel.note(metric)}".strip()
    return table_of(title, panel.axis, panel.rows(metric), columns, panel.compete(metric), note)


def finals(table: RunTable, panel: Panel, measure: Measure) -> dict[str, pd.Series]:
    """Return the final values of each choice, by seed."""
    curves = panel.curves(table, measure.name)
    return {name: last_rounds(own, measure.last) for name, own in zip(panel.names, curves, strict=True)}


# ---------------------------------------------------------------- tables


def progress_table(table: RunTable, panel: Panel, measure: Measure, every: int) -> Table:
    """Tabulate mean ± std after every ``every`` rounds, the best value and the round of the best value (FedLoss thesis)."""
    curves = panel.curves(table, measure.name)
    length = max((int(own.index.max()) + 1 for own in curves if len(own)), default=0)
    columns = [
        Column.of(measure, f"after {number} round{'s' * (number != 1)}", [at_round(own, number - 1) for own in curves])
        for number in sorted({*range(every, length + 1, every), length} - {0})
    ]
    tops, rounds = zip(*(best(own, measure.higher) for own in curves), strict=True)
    columns += [Column.of(measure, "best", tops), Column("after rounds", rounds)]
    numbers = sorted({len(table.seeds(setting)) for setting in panel.settings.values()})
    over = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    said = "One seed." if numbers == [1] else f"Mean ± standard deviation over {over} seeds."
    return _of_panel(f"{measure.title} over rounds", panel, measure.name, columns, f"{said} Logs count rounds from 0.")


def late_table(table: RunTable, panel: Panel, measure: Measure, after: int) -> Table | None:
    """Tabulate maximum, mean and variance of later rounds, averaged over seeds (FedNova thesis); None without such rounds."""
    late = [own[own.index >= after].dropna(axis=1, how="all") for own in panel.curves(table, measure.name)]
    if not any(own.size for own in late):
        return None
    variances = [(deviation(own.T) ** 2).mask((own == math.inf).any(), math.inf)[own.count() > 1] for own in late]
    digits = measure.digits if measure.percent else measure.digits + 2  # a variance has squared units
    columns = [
        Column.of(measure, "maximum" if measure.higher else "minimum", [best(own, measure.higher)[0] for own in late]),
        Column.of(measure, "mean", [own.mean() for own in late]),
        Column("variance", variances, False, measure.scale**2, digits),
    ]
    note = "Each over the rounds of a run, then averaged over seeds."
    return _of_panel(f"{measure.title} after the first {after} rounds", panel, measure.name, columns, note)


def final_table(table: RunTable, panel: Panel, measures: Sequence[Measure]) -> Table | None:
    """Tabulate metrics at the end of the runs (Fed-Star thesis: accuracy, macro and weighted F1); None if none was logged."""
    logged = [measure for measure in measures if any(map(len, panel.curves(table, measure.name)))]
    if not logged:
        return None
    columns = [Column.of(measure, measure.label, [*finals(table, panel, measure).values()]) for measure in logged]
    return _of_panel("At the end", panel, logged[0].name, columns, logged[0].at_the_end)


def cross_tables(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure]) -> Iterator[Table]:
    """Yield the final values of each metric, with the compared axis as rows and the other as columns; needs two axes.

    Args:
        table: run table of a study.
        panels: its settings, grouped by their choice on the other axis.
        measures: metrics; each that was logged gets a table. The best value of a column is bold if a direction is better.
    """
    if len(table.axes) != 2 or len(panels) < 2:
        return
    whole, none = together(panels), pd.Series(dtype=float)
    for measure in measures:
        found = {panel.choice: finals(table, panel, measure) for panel in panels}
        if not any(len(own) for by_name in found.values() for own in by_name.values()):
            continue
        columns = [Column.of(measure, head, [own.get(name, none) for name in whole.names]) for head, own in found.items()]
        sets = {panel.measured_on(panel.against, measure.name) for panel in panels} - {None}
        note = f"Columns: {panels[0].other}. {measure.at_the_end}"
        made = _of_panel(f"{measure.title} at the end", whole, measure.name, columns, note)
        differ = " The columns are measured on different sets, so compare within a column." if len(sets) > 1 else ""
        yield replace(made, note=made.note + differ)


def cost_table(table: RunTable, panel: Panel, measure: Measure, targets: Sequence[float]) -> Table | None:
    """Tabulate rounds, megabytes, seconds and ticks of a simulated clock, if any, to each target, and the totals of the run.

    Returns:
        The table, or None without targets if no run logged megabytes, of which ``keep`` may have left out the columns.
    """
    sent, received, seconds, ticks = (
        panel.curves(table, f"federation/{name}") for name in ("bytes_up", "bytes_down", "seconds", "ticks")
    )
    if not targets and not any(map(len, sent)):
        return None
    costs = {
        "MB": [((up + down.reindex_like(up).fillna(0)) / 1e6).cumsum() for up, down in zip(sent, received, strict=True)],
        "s": [own.reindex_like(up).fillna(0).cumsum().where(up.notna()) for up, own in zip(sent, seconds, strict=True)],
    }
    if any(map(len, ticks)):
        costs["ticks"] = [own.reindex_like(up) for up, own in zip(sent, ticks, strict=True)]
    curves = panel.curves(table, measure.name)
    columns: list[Column] = []
    seeds = [own.shape[1] for own in curves]
    for target in targets:
        needed = [rounds_to(own, target, measure.higher) for own in curves]
        end = f"to {'≥' if measure.higher else '≤'} {target * measure.scale:g}"
        columns.append(Column(f"rounds {end}", needed, seeds=seeds))
        for unit, totals in costs.items():
            columns.append(Column(f"{unit} {end}", [_at(own, there) for own, there in zip(totals, needed, strict=True)]))
    columns += [Column(f"total {unit}", [last_rounds(own) for own in totals]) for unit, totals in costs.items()]
    note = " ".join(COSTS[unit] for unit in costs)
    return table_of("Cost", panel.axis, panel.rows(measure.name), columns, panel.compete(measure.name), note)


def _at(totals: pd.DataFrame, rounds: pd.Series) -> pd.Series:
    """Return what each seed had spent after a number of rounds of its own."""
    there = {seed: totals[seed].get(number - 1, math.nan) for seed, number in rounds.items() if seed in totals}
    return pd.Series(there, dtype=float).dropna()


def paired_table(
    values: Mapping[str, pd.Series], panel: Panel, measure: Measure, over: str = "seed", more: str = ""
) -> Table | None:
    """Test each choice against a panel's baseline by a paired t-test with Holm's correction; None for one choice.

    The verdict is 'better' or 'worse' only if the corrected p is below 0.05. A choice that is measured on another set than the
    baseline is not tested.

    Args:
        values: the paired values by choice, each by seed or site.
        panel: names the choices and the baseline.
        measure: the metric.
        over: the word for what the values are paired over.
        more: a further note.
    """
    if [*values] == [panel.against]:
        return None
    none, apart = pd.Series(dtype=float), panel.apart(measure.name) if over == "seed" else {}
    against = values.get(panel.against, none)
    tests = {
        name: paired_test(none if name in apart else own, against) for name, own in values.items() if name != panel.against
    }
    corrected = holm(pd.Series({name: test.p for name, test in tests.items()}, dtype=float))
    labels = dict(zip(panel.names, panel.rows(measure.name), strict=True))
    rows = []
    for name, test in tests.items():
        p = corrected[name]
        verdict = "not comparable" if name in apart else _verdict(test, p, measure, over)
        shown = "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
        rows.append((labels.get(name, panel.label(name)), str(test.pairs), _difference(test, measure), shown, verdict))
    note = "Difference of the final values with its 95 % confidence interval; p of the paired t-test, corrected by Holm."
    if panel.against not in values:
        note = f"There are no runs of {panel.label(panel.against)} here."
    unit = " in points" if measure.percent else ""
    title = f"{replace(measure, percent=False).title}{unit} against {panel.label(panel.against)}, paired over {over}s"
    notes = " ".join(filter(None, (note, more, panel.note(measure.name))))
    return Table(title, (panel.axis, f"{over}s", "difference", "p", "verdict"), rows, notes)


def _difference(test: Paired, measure: Measure) -> str:
    shown = [f"{x * measure.scale:{sign}.{measure.digits}f}" for x, sign in ((test.difference, "+"), (test.half_width, ""))]
    has_interval = test.half_width > 0 or test.half_width == test.difference == 0  # equal differences allow no interval
    return "-" if math.isnan(test.difference) else " ± ".join(shown if has_interval else shown[:1])


def _verdict(test: Paired, p: float, measure: Measure, over: str) -> str:
    if test.pairs < 2:
        return f"too few {over}s"
    if math.isnan(p):
        return f"equal in every {over}" if not test.difference else "no variance to test against"
    if p >= 0.05:
        return "no significant difference"
    return "better" if (test.difference > 0) == measure.higher else "worse"


def clients_table(table: RunTable, panel: Panel, measure: Measure) -> Table | None:
    """Tabulate local, global and personalised scores at each client (Fed-Star thesis, Table 5.8); None without them."""
    members = [member.rsplit("/", 1) for member in table.families("client_comparison")]
    models = [model for model in MODELS if any(own == model for _, own in members)]
    if not models:
        return None
    found = {}
    for client in dict.fromkeys(client for client, _ in members):
        for name, setting in panel.settings.items():
            curves = [table.of_clients(setting, f"client_comparison/{client}/{model}") for model in models]
            if any(map(len, curves)):  # otherwise a client of another panel's data
                found[f"{client}, {panel.label(name)}"] = [last_rounds(own) for own in curves]
    if not found:
        return None
    by_model = dict(zip(models, zip(*found.values(), strict=True), strict=True))
    columns = [Column(model, own, None, measure.scale, measure.digits) for model, own in by_model.items()]
    note = OF_CLIENTS
    if not all(map(table.has_same_clients, panel.settings.values())):
        note += f" Seed {min(map(min, map(table.seeds, panel.settings.values())))}: the others divide the data differently."
    title = f"Local, global, personalised{' in percent' if measure.percent else ''}"
    return table_of(title, f"client, {panel.axis}", list(found), columns, [True] * len(found), note)
