"""Reports of studies: from a run table to ``report.md``, ``report.tex`` and the figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.metric_names import is_validation_figure
from fl_lightning.studies.figures import FORMATS, draw_all
from fl_lightning.studies.leave_one_out import leave_one_out_tables
from fl_lightning.studies.page import MATRICES, Shown, Table, write_page
from fl_lightning.studies.panels import REFERENCE, Measure, Panel, ReportOptions, panels
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.set_up import (
    CENTRALIZED,
    LAST_CLIENT,
    LOCAL_ONLY,
    METRIC,
    code_in_words,
    codes,
    on_test_set,
    set_up_tables,
)
from fl_lightning.studies.tables import (
    clients_table,
    cost_table,
    cross_tables,
    deviation,
    final_table,
    finals,
    late_table,
    paired_table,
    progress_table,
)

Sections = list[tuple[str, list[Table]]]


def write_report(table: RunTable, options: ReportOptions, folder: Path, name: str) -> list[Path]:
    """Write the report as one HTML page, the tables as Markdown and LaTeX, and the figures in the same folder.

    Args:
        table: run table of a study.
        options: what to show.
        folder: folder for the files; created if it does not exist.
        name: name of the study.

    Returns:
        The files.

    Raises:
        ConfigurationError: if the metric was never logged, or ``folder`` is a file.
    """
    facts = table.facts_of(table.settings[0]) if len(table) else {}
    options = options.by_default(facts.get("metric", METRIC), facts.get("mode"))
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"Cannot write the report to '{folder}', which is a file. Name a folder.")
    metric = options.measure.name
    require_logged(metric, table.metrics, "the runs")
    folder.mkdir(parents=True, exist_ok=True)
    grouped = panels(table, options.names, options.baseline)
    final, crossed, drawn = options.measures(on_test_set(table.facts.values()))
    results: Sections = list(leave_one_out_tables(table, grouped, options.measure))
    by_panel = [] if results else grouped
    results = results or [("", list(cross_tables(table, grouped, crossed)))]
    details: Sections = [("", []) for _ in results]
    for panel in by_panel:
        own, more = _tables(table, panel, options, final)
        results.append((panel.title, [*filter(None, own)]))
        details.append((panel.title, [*filter(None, more)]))
    set_up, title, page = list(set_up_tables(table)), options.title or name, folder / "report.html"
    words = guide(grouped, [*final, *drawn], table, known=bool(set_up))
    write_page(page, title, shown_of(table, grouped), results, metric, details=details, set_up=set_up, words=words)
    markdown = [f"# {title}", "", *(one.markdown() for one in set_up), *(f"- {one}" for one in words), ""]
    latex = [one.latex() for one in set_up]
    for (heading, first), (_, further) in zip(results, details, strict=True):
        markdown += [f"## {heading}", ""] if heading else []
        markdown += [one.markdown() for one in (*first, *further)]
        latex += [one.latex(heading) for one in (*first, *further)]
    pictures = {file: what[0].upper() + what[1:] for file, what in draw_all(table, grouped, drawn, folder).items()}
    markdown += [f"![{caption}]({file}.png)\n\n*{caption}.*\n" for file, caption in pictures.items()]
    (folder / "report.md").write_text("\n".join(markdown).rstrip() + "\n", encoding="utf-8")
    (folder / "report.tex").write_text("\n".join(latex), encoding="utf-8")
    files = ["report.html", "report.md", "report.tex", *(f"{file}.{kind}" for file in pictures for kind in FORMATS)]
    return [folder / file for file in files]


def require_logged(metric: str, logged: Collection[str], who: str) -> None:
    """Refuse a metric of the report that runs did not log.

    Raises:
        ConfigurationError: naming what they did log.
    """
    if metric not in logged:
        known = ", ".join(sorted(name for name in logged if "/" not in name or is_validation_figure(name))) or "nothing"
        raise ConfigurationError(f"'report.metric' is '{metric}', but {who} logged: {known}. Set it to one of these.")


def shown_of(table: RunTable, grouped: Sequence[Panel]) -> list[Shown]:
    """Return what the page draws of each setting."""
    matrices = tuple(f"{prefix}/" for prefix in MATRICES)
    names = [metric for metric in table.metrics if not metric.startswith((*matrices, "client_comparison/"))]
    found = []
    for panel, choice, setting in ((group, *own) for group in grouped for own in group.settings.items()):
        read = {m: (table.of_clients if m.startswith("client_share/") else table.curves)(setting, m) for m in names}
        curves = {m: (own.index, own.mean(axis=1), deviation(own).fillna(0)) for m, own in read.items() if len(own)}
        label = ", ".join(filter(None, (panel.label(choice) if choice != "all" else "", panel.title)))
        found.append(Shown(label, table.seeds(setting)[0], curves, table.cells(setting, *matrices)))
    return found


ON_TEST_SET = (
    "The server has validated on the test set, so its figures are fit to compare settings that were fixed before, and not to "
    "choose any: a figure by which something was chosen is too good. To choose, hold out a validation set, such as by "
    "'data.datamodule.validation_share'; the best checkpoint of each run is then tested."
)
_BASELINES = {
    CENTRALIZED: "trains on the examples of all clients at once, and counts epochs as rounds",
    LOCAL_ONLY: "is each client alone; a metric of the server is that of the best client's model",
    LAST_CLIENT: "keeps the model of the round's last client",
}


def guide(grouped: Sequence[Panel], measures: Sequence[Measure], table: RunTable, known: bool = False) -> list[str]:
    """Return points on how to read the report: names of metrics, baselines, unequal training sets.

    The partition and the code are among them unless the set-up is known, which names them.
    """
    logged = {one.name: one.words for one in measures if one.name in table.metrics}
    words = [f"{words} is `{name}`" for name, words in logged.items() if words != name]
    said = [f"Names: {', '.join(words)}."] if words else []
    if on_test_set(table.facts.values()):
        said.append(ON_TEST_SET)
    partitions = dict.fromkeys(panel.partition for panel in grouped)
    if None not in partitions and not known:
        said.append(f"Partition: {'; '.join(map(str, partitions))}.")
    said.append("In figures, lines are means over seeds, and bands are ± one standard deviation.")
    kinds = {panel.label(name): kind for panel in grouped for name, kind in panel.references.items()}
    said += [f"{name} {REFERENCE} {_BASELINES[kind]}." for name, kind in kinds.items()]
    shares: dict[str, dict[str, None]] = {}
    for panel in grouped:
        for name, facts in panel.facts.items():
            if "training" in facts:
                shares.setdefault(facts["training"], {})[panel.label(name)] = None
    if len(shares) > 1:
        *few, (most, _) = sorted(shares.items(), key=lambda own: (len(own[1]), "100 %" in own))
        listed = [*(f"{share} ({'; '.join(names)})" for share, names in few), f"{most} (the others)"]
        said.append(f"Share of its examples that a client trains on: {', '.join(listed)}.")
    if (code := codes(table)) and not known:
        said.append(f"Code: {code_in_words(code)}.")
    return said


def print_files(files: Sequence[Path]) -> None:
    """Print which files were written, and where."""
    print(f"Report: {', '.join(map(str, files[:3]))}, {len(files[3:]) // len(FORMATS)} figures as PNG, SVG and PDF")


def _tables(
    table: RunTable, panel: Panel, options: ReportOptions, measures: Sequence[Measure]
) -> tuple[list[Table | None], list[Table | None]]:
    """Return the tables of a panel: those of the result, and further ones."""
    measure = measures[0]
    named = (measure.name, measure.name.replace("val", "test", 1))
    tests = [own for own in measures if own.name in named and own.name in table.metrics]
    result = [final_table(table, panel, measures), *(paired_table(finals(table, panel, own), panel, own) for own in tests)]
    return result, [
        progress_table(table, panel, measure, options.every),
        late_table(table, panel, measure, options.after),
        cost_table(table, panel, measure, options.targets),
        clients_table(table, panel, measure),
    ]
