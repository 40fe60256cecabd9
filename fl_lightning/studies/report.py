"""Reports of studies: from a run table to ``report.md``, ``report.tex`` and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.metric_names import is_validation_figure
from fl_lightning.studies.cross_table import cross_tables
from fl_lightning.studies.drawing import FORMATS
from fl_lightning.studies.facts import CENTRALIZED, LAST_CLIENT, LOCAL_ONLY, METRIC, codes, facts_of
from fl_lightning.studies.figures import draw_all
from fl_lightning.studies.html import write_page
from fl_lightning.studies.layout import Table, latex_figure
from fl_lightning.studies.leave_one_out import leave_one_out_tables
from fl_lightning.studies.options import ReportOptions
from fl_lightning.studies.panels import REFERENCE, Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.set_up import on_test_set, set_up_tables
from fl_lightning.studies.tables import (
    clients_table,
    cost_table,
    final_table,
    late_table,
    paired_table,
    progress_table,
)


def require_packages() -> None:
    """Check before any run that the report can be written.

    Raises:
        ConfigurationError: if matplotlib or scipy is missing.
    """
    try:
        import matplotlib  # noqa: F401
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"A study's report needs matplotlib and scipy ({error}). Install them with pip install 'fl_lightning[compare]'."
        ) from error


def write_report(table: RunTable, options: ReportOptions, folder: Path, name: str, page_only: bool = False) -> list[Path]:
    """Write the report as one HTML page, the tables as Markdown and LaTeX, and the figures in the same folder.

    Args:
        table: run table of a study.
        options: what to show.
        folder: folder for the files; created if it does not exist.
        name: name of the study.
        page_only: whether to write the page alone.

    Returns:
        The files.

    Raises:
        ConfigurationError: if the metric was never logged, an option names an axis that the study does not have, or ``folder``
            is a file.
    """
    facts: dict[str, Any] = next(iter(facts_of(table).values()), {})
    options = options.by_default(facts.get("metric", METRIC), facts.get("mode"))
    options.check(table.axes)
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"Cannot write the report to '{folder}', which is a file. Name a folder.")
    metric, on_test = options.measure.name, on_test_set(table)
    if metric not in table.metrics:
        known = ", ".join(metric for metric in table.metrics if "/" not in metric or is_validation_figure(metric)) or "none"
        raise ConfigurationError(
            f"'report.metric' is '{metric}', which no run logged. The runs logged: {known}. Set it to one of these."
        )
    folder.mkdir(parents=True, exist_ok=True)
    grouped = options.panels(table)
    tables = [(panel, list(_tables(table, panel, options, on_test))) for panel in grouped]
    first = list(set_up_tables(table))
    crossed = list(cross_tables(table, grouped, _named(options.crossed, on_test)))
    words = guide(grouped, options, table, known=bool(first))
    if left := list(leave_one_out_tables(table, grouped, options.compare, options.measure)):
        tables, crossed = [], []  # of each site alone
    sections = [*left, ("", crossed), *((panel.title, own) for panel, own in tables)]
    title = options.title or name
    write_page(folder / "report.html", title, table, grouped, [("", first), *sections], words, metric)
    if page_only:
        return [folder / "report.html"]
    pictures = draw_all(table, grouped, _named(options.drawn, on_test), folder, options.families)
    _write_texts(folder, title, first, words, sections, pictures)
    files = ["report.html", "report.md", "report.tex", *(f"{file}.{kind}" for file in pictures for kind in FORMATS)]
    return [folder / file for file in files]


def _write_texts(
    folder: Path,
    title: str,
    first: Sequence[Table],
    words: Sequence[str],
    sections: Sequence[tuple[str, Sequence[Table]]],
    pictures: Mapping[str, str],
) -> None:
    """Write ``report.md`` and ``report.tex``."""
    markdown = [f"# {title}", "", *(one.markdown() for one in first), *(f"- {one}" for one in words), ""]
    latex = [one.latex() for one in first]
    for heading, own in sections:
        if heading:
            markdown += [f"## {heading}", ""]
        markdown += [one.markdown() for one in own]
        latex += [one.latex(heading) for one in own]
    captions = {file: what[0].upper() + what[1:] for file, what in pictures.items()}
    markdown += [f"![{what}]({file}.png)\n\n*{what}.*\n" for file, what in captions.items()]
    latex += [latex_figure(file, what) for file, what in captions.items()]
    (folder / "report.md").write_text("\n".join(markdown).rstrip() + "\n", encoding="utf-8")
    (folder / "report.tex").write_text("\n".join(latex), encoding="utf-8")


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


def guide(grouped: Sequence[Panel], options: ReportOptions, table: RunTable, known: bool = False) -> list[str]:
    """Return points on how to read the report: names of metrics, baselines, unequal training sets.

    The partition and the code are among them unless the set-up is known, which names them.
    """
    code, metrics = codes(table), set(table.metrics)
    logged = {m.name: m for m in _named([*options.measures, *options.drawn], on_test_set(table)) if m.name in metrics}
    words = [f"{one.words} is `{one.name}`" for one in logged.values() if one.words != one.name]
    said = [f"Names: {', '.join(words)}."] if words else []
    if on_test_set(table):
        said.append(ON_TEST_SET)
    partitions = dict.fromkeys(panel.partition for panel in grouped)
    if None not in partitions and not known:
        said.append(f"Partition: {'; '.join(map(str, partitions))}.")
    said.append("In figures, lines are means over seeds, and bands are ± one standard deviation.")
    kinds = {panel.label(name): kind for panel in grouped for name, kind in panel.references.items()}
    said += [f"{name} {REFERENCE} {_BASELINES.get(kind, 'is a baseline')}." for name, kind in kinds.items()]
    shares: dict[str, dict[str, None]] = {}
    for panel in grouped:
        for name, facts in panel.facts.items():
            if "training" in facts:
                shares.setdefault(facts["training"], {})[panel.label(name)] = None
    if len(shares) > 1:
        *few, (most, _) = sorted(shares.items(), key=lambda own: (len(own[1]), "100 %" in own))
        listed = [*(f"{share} ({'; '.join(names)})" for share, names in few), f"{most} (the others)"]
        said.append(f"Share of its examples that a client trains on: {', '.join(listed)}.")
    if code and not known:
        counts = [f"{name}, {runs} run{'s' * (runs != 1)}" for name, runs in code.items()]
        said.append(f"Code: fl_lightning {'; '.join(counts)}.")
    return said


def _named(measures: Sequence[Measure], on_test: bool) -> list[Measure]:
    """Return metrics that are called those of the test set if the server has validated on it."""
    return [replace(measure, on_test=on_test) for measure in measures]


def print_files(files: Sequence[Path], folder: Path) -> None:
    """Print which files were written, and where."""
    if len(files) == 1:
        print(f"Report: {files[0]}")
        return
    pictures = [path for path in files if path.suffix == ".png"]
    texts = ", ".join(str(folder / f"report.{kind}") for kind in ("html", "md", "tex"))
    print(f"Report: {texts}, {len(pictures)} figures as PNG, SVG and PDF")


def _tables(table: RunTable, panel: Panel, options: ReportOptions, on_test: bool) -> Iterator[Table]:
    (measure,) = _named([options.measure], on_test)
    tested = options.tested(measure)
    tests = [tested] if tested is not None and tested.name in table.metrics else []
    made = (
        progress_table(table, panel, measure, options.every),
        late_table(table, panel, measure, options.after),
        final_table(table, panel, _named(options.measures, on_test)),
        paired_table(table, panel, measure),
        *(paired_table(table, panel, own) for own in tests),
        cost_table(table, panel, measure, options.targets),
        clients_table(table, panel, measure),
    )
    return (one for one in made if one is not None)
