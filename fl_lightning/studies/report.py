"""Reports of studies: from a run table to ``report.md``, ``report.tex`` and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better, known_direction
from fl_lightning.functional.metric_names import is_validation_figure
from fl_lightning.studies.cross_table import cross_tables
from fl_lightning.studies.drawing import FORMATS
from fl_lightning.studies.facts import CENTRALIZED, LAST_CLIENT, LOCAL_ONLY, METRIC, codes, facts_of
from fl_lightning.studies.figures import draw_all
from fl_lightning.studies.html import write_page
from fl_lightning.studies.layout import Table, latex_figure
from fl_lightning.studies.panels import REFERENCE, Measure, Panel, panels
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


@dataclass(frozen=True)
class ReportOptions:
    """Choose what a study's report shows.

    Args:
        metric: metric by which runs are compared; by default ``best_checkpoint.monitor`` of the study's first run.
        mode: ``max`` if higher is better, ``min`` if lower is; by default, what the name of the metric implies.
        percent: show the metric, and those of ``also``, times 100.
        also: further metrics in the table of final values.
        beside: further metrics in that table, shown as they are and without a best value, such as what privacy has cost.
        compare: axis whose choices are compared; by default the first of the study.
        baseline: choice of that axis against which the others are tested; by default its first.
        every: number of rounds between the columns of the table over rounds, >= 1.
        after: round, counted from 1, after which maximum, mean and variance are computed, >= 0.
        last: number of last rounds whose mean is the final value of a run, >= 1.
        targets: values of the metric for which to report the cost of reaching them.
        draw: further metrics to draw as curves.
        title: title of the report; by default the study's name.
        names: names for readers by choice, such as ``adafed_f1: AdaFed by F1``. By default, a file of a known algorithm has
            the algorithm's name.
        references: choices that are baselines to look at, not competitors: never in bold, and drawn in grey. By default,
            centralized training, local only and last client.
        families: choices to draw in one panel, by the panel's title, when there are too many lines for one. By default, the
            groups of ``fl-lightning algorithms``.

    Raises:
        ConfigurationError: for numbers outside their ranges, or if neither ``mode`` nor the metric's name says which is better.
    """

    metric: str | None = None
    mode: Literal["max", "min"] | None = None
    percent: bool = True
    also: list[str] = field(default_factory=lambda: ["val_f1_macro", "val_f1_weighted"])
    beside: list[str] = field(default_factory=list)
    compare: str | None = None
    baseline: str | None = None
    every: int = 10
    after: int = 15
    last: int = 1
    targets: list[float] = field(default_factory=list)
    draw: list[str] = field(default_factory=list)
    title: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    references: list[str] | None = None
    families: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.every >= 1, "report.every", "at least 1", self.every)
        require(self.after >= 0, "report.after", "at least 0", self.after)
        require(self.last >= 1, "report.last", "at least 1", self.last)
        if self.metric is not None:
            higher_is_better(self.metric, self.mode, "report.mode")

    def by_default(self, metric: str, mode: Literal["max", "min"] | None) -> ReportOptions:
        """Return the options with a metric, and its mode, where they name none."""
        return self if self.metric is not None else replace(self, metric=metric, mode=self.mode or mode)

    @property
    def measure(self) -> Measure:
        """The metric by which runs are compared."""
        metric = self.metric or METRIC
        return Measure(metric, higher_is_better(metric, self.mode, "report.mode"), self.percent, self.last)

    @property
    def measures(self) -> list[Measure]:
        """All metrics of the table of final values, each also on the test set, if the best checkpoints were tested.

        None has a best value if its name does not imply a direction.
        """
        first = [self.measure, *(self._other(name) for name in self.also if name != self.measure.name)]
        return [*first, *filter(None, map(self.tested, first)), *self.plain]

    @staticmethod
    def tested(measure: Measure) -> Measure | None:
        """Return the metric of the best checkpoint on the test set that belongs to one of validation."""
        name = measure.name
        return replace(measure, name=name.replace("val", "test", 1), last=1) if name.startswith(("val_", "val/")) else None

    @property
    def plain(self) -> list[Measure]:
        """Metrics that are shown as they are."""
        return [Measure(name, percent=False, last=self.last, ranked=False) for name in self.beside]

    @property
    def crossed(self) -> list[Measure]:
        """Metrics that are shown for each pair if a study has two axes."""
        return [self.measure, *self.plain]

    @property
    def drawn(self) -> list[Measure]:
        """Metrics whose curves are drawn."""
        return [self.measure, *(self._other(name) for name in self.draw if name != self.measure.name)]

    def _other(self, name: str) -> Measure:
        direction = known_direction(name)
        return Measure(name, direction is not False, self.percent, self.last, ranked=direction is not None)

    def panels(self, table: RunTable) -> list[Panel]:
        """Return the settings of a table that are compared, with their names for readers."""
        return panels(table, self.compare, self.names, self.references, self.baseline)

    def check(self, axes: Sequence[str], choices: Sequence[Sequence[str]] | None = None) -> None:
        """Reject names that the study does not have.

        Args:
            axes: axes of the study.
            choices: choices on each axis, if they are known.

        Raises:
            ConfigurationError: if a name is wrong; the message lists the valid ones.
        """
        if self.compare is not None and self.compare not in axes:
            known = ", ".join(axes) or "none"
            raise ConfigurationError(
                f"'report.compare' is '{self.compare}', but the study's axes are: {known}. Set it to one of them."
            )
        if choices is None or not axes:
            return
        of_axis = choices[axes.index(self.compare) if self.compare else 0]
        named = {
            "baseline": [self.baseline] if self.baseline is not None else [],
            "references": self.references or [],
            "names": list(self.names),
            "families": [choice for family in self.families.values() for choice in family],
        }
        for setting, given in named.items():
            for choice in given:
                if choice not in of_axis:
                    raise ConfigurationError(
                        f"'report.{setting}' has '{choice}', but the choices of the axis '{self.compare or axes[0]}' are: "
                        f"{', '.join(of_axis)}. Use one of them."
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
    title, sections = options.title or name, [("", crossed), *((panel.title, own) for panel, own in tables)]
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
