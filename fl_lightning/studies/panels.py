"""What a study's report shows: metrics, the settings that differ on one axis only, and how a user chooses among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better, known_direction
from fl_lightning.studies.names import in_words, label_of, setting_in_words
from fl_lightning.studies.set_up import METRIC
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    import pandas as pd

    from fl_lightning.studies.run_table import RunTable, Setting

APART, REFERENCE = "†", "‡"
"""Marks of rows that cannot be compared, and of rows that do not compete."""


@dataclass(frozen=True)
class Measure:
    """Describe a metric of a report.

    Args:
        name: name as logged.
        higher: whether higher is better.
        percent: whether it is shown times 100.
        last: number of last rounds whose mean is the final value of a run.
        ranked: whether one value is better than another at all.
        on_test: whether what is called validation was done on the test set.
    """

    name: str = "val_accuracy"
    higher: bool = True
    percent: bool = True
    last: int = 1
    ranked: bool = True
    on_test: bool = False

    @property
    def scale(self) -> float:
        """Factor from logged to shown values."""
        return 100.0 if self.percent else 1.0

    @property
    def digits(self) -> int:
        """Number of digits after the decimal point."""
        return 2 if self.percent else 4

    @property
    def label(self) -> str:
        """The metric in words, with its unit."""
        return self.words + (" in percent" if self.percent else "")

    @property
    def words(self) -> str:
        """The metric in words."""
        found = in_words(self.name)
        if self.on_test:
            return found.replace("validation ", "test ", 1)
        return f"{found} of the best checkpoint" if self.name.startswith("test_") and found != self.name else found

    @property
    def at_the_end(self) -> str:
        """What the final value of a run is."""
        return "After the last round." if self.last == 1 else f"Mean of the last {self.last} rounds."

    @property
    def title(self) -> str:
        """The label as the beginning of a sentence; a name that is not known in words stays as it is logged."""
        return self.label if self.words == self.name else self.label[0].upper() + self.label[1:]


@dataclass(frozen=True)
class Panel:
    """Group settings that differ on one axis only, to compare them.

    Attributes:
        title: what the settings have in common.
        axis: axis on which they differ.
        settings: settings by their choice on that axis.
        other: the other axes, in words.
        choice: the settings' choices on them, for readers.
        labels: names for readers by choice; a choice without one is shown as it is.
        references: choices that are no competitors, each with the baseline that it is.
        facts: what is known of each choice, see :func:`~fl_lightning.studies.set_up.facts`.
        baseline: choice against which the others are tested.
        parts: the panels whose choices it has; a choice that is not comparable in one of them is marked.
    """

    title: str
    axis: str
    settings: dict[str, Setting]
    other: str = ""
    choice: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str | None = None
    parts: Sequence[Panel] = ()

    @property
    def names(self) -> list[str]:
        """The names of the choices."""
        return list(self.settings)

    @property
    def against(self) -> str:
        """The choice against which the others are tested: the first by default."""
        return self.baseline or self.names[0]

    def label(self, choice: str) -> str:
        """Return a choice's name for readers."""
        return self.labels.get(choice, choice)

    def curves(self, table: RunTable, metric: str) -> list[pd.DataFrame]:
        """Return the curves of each setting."""
        return [table.curves(setting, metric) for setting in self.settings.values()]

    def some(self, choices: Collection[str]) -> Panel:
        """Return the panel with some of its choices, in its own order."""
        return replace(self, settings={name: setting for name, setting in self.settings.items() if name in choices})

    @property
    def partition(self) -> str | None:
        """The partition in words, if the table says which it is and all settings have the same."""
        found = {self.facts.get(name, {}).get("partition") for name in self.names}
        return found.pop() if len(found) == 1 else None

    def measured_on(self, choice: str, metric: str) -> str | None:
        """Return the set that a metric of a choice is measured on; None if the table does not say so."""
        of_clients = metric.startswith(("federation/client_", "federation/unseen_", "client_comparison/"))
        return self.facts.get(choice, {}).get("client_set" if of_clients else "server_set")

    def apart(self, metric: str) -> dict[str, str]:
        """Return the choices whose metric is measured on another set than the baseline's, with what that set is."""
        if self.parts:
            return {name: text for part in reversed(self.parts) for name, text in part.apart(metric).items()}
        own = self.measured_on(self.against if self.against in self.settings else self.names[0], metric)
        sets = {choice: self.measured_on(choice, metric) for choice in self.names}
        return {choice: text for choice, text in sets.items() if own is not None and text is not None and text != own}

    def rows(self, metric: str) -> list[str]:
        """Return the names of a table's rows, with marks."""
        apart = self.apart(metric)
        marks = [(REFERENCE * (name in self.references)) + (APART * (name in apart)) for name in self.names]
        return [f"{self.label(name)} {mark}".rstrip() for name, mark in zip(self.names, marks, strict=True)]

    def compete(self, metric: str) -> list[bool]:
        """Return which choices may have the best value: neither baselines, nor choices measured on another set."""
        aside = {*self.references, *self.apart(metric)}
        return [name not in aside for name in self.names]

    def note(self, metric: str) -> str:
        """Return what a table must say below its title: what its marks mean, and what is not comparable."""
        apart = self.apart(metric)
        said = [f"{REFERENCE} Baseline: never in bold."] if self.references.keys() & self.settings.keys() else []
        for text in dict.fromkeys(apart.values()):
            who = ", ".join(self.label(name) for name, own in apart.items() if own == text)
            said.append(f"{APART} Not comparable with the other rows, never in bold: {who} is measured on {text}.")
        if apart:
            said.append(f"The others are measured on {self.measured_on(self.against, metric)}.")
        return " ".join(said)


def panels(table: RunTable, labels: Mapping[str, str] | None = None, baseline: str | None = None) -> list[Panel]:
    """Group the settings of a table by their choices on all axes but the first, whose choices are compared.

    Args:
        table: run table of a study.
        labels: names for readers; by default :func:`~fl_lightning.studies.names.readable` finds them.
        baseline: choice against which the others are tested; by default the first.
    """
    compared, others = table.axes[0] if table.axes else "setting", table.axes[1:]
    choices = [{setting[k] for setting in table.settings} for k in range(len(table.axes))] or [{"all"}]
    found: dict[tuple[str, ...], dict[str, Setting]] = {}
    for setting in table.settings:
        found.setdefault(setting[1:], {})[setting[0] if setting else "all"] = setting
    axes = list(map(setting_in_words, others))
    made = []
    for chosen, settings in found.items():
        own = [label_of(*named) for named in zip(others, chosen, choices[1:], strict=True)]
        title = ", ".join(label if " = " in label else f"{words}: {label}" for words, label in zip(axes, own, strict=True))
        facts = {name: table.facts_of(setting) for name, setting in settings.items()}
        shown = {name: (labels or {}).get(name, label_of(compared, name, choices[0])) for name in settings}
        aside = {name: own["reference"] for name, own in facts.items() if "reference" in own}
        more = ", ".join(axes), ", ".join(own)
        made.append(Panel(title, setting_in_words(compared), settings, *more, shown, aside, facts, baseline))
    return made


def together(panels: Sequence[Panel]) -> Panel:
    """Return the choices of several panels as one panel; each choice is that of the first which has it."""
    parts = ("settings", "labels", "references", "facts")
    merged: dict[str, Any] = {
        part: {name: own for panel in reversed(panels) for name, own in getattr(panel, part).items()} for part in parts
    }
    names = dict.fromkeys(name for panel in panels for name in panel.names)
    merged["settings"] = {name: merged["settings"][name] for name in names}
    return replace(panels[0], title="", parts=panels, **merged)


REPORT = "report.yaml"
"""The file beside a study's report with the options that it was written with."""


@checks_types
@dataclass(frozen=True)
class ReportOptions:
    """Choose what a study's report shows.

    Args:
        metric: metric by which runs are compared; by default ``best_checkpoint.monitor`` of the study's first run.
        mode: ``max`` if higher is better, ``min`` if lower is; by default, what the name of the metric implies.
        percent: show the metric, and those of ``also``, times 100.
        also: further metrics in the table of final values.
        beside: further metrics in that table, shown as they are and without a best value, such as what privacy has cost.
        baseline: choice of the first axis against which the others are tested; by default its first.
        every: number of rounds between the columns of the table over rounds, >= 1.
        after: round, counted from 1, after which maximum, mean and variance are computed, >= 0.
        last: number of last rounds whose mean is the final value of a run, >= 1.
        targets: values of the metric for which to report the cost of reaching them.
        draw: further metrics to draw as curves.
        title: title of the report; by default the study's name.
        names: names for readers by choice, such as ``adafed_f1: AdaFed by F1``. By default, a file of a known algorithm has
            the algorithm's name.

    Raises:
        ConfigurationError: for numbers outside their ranges, or if neither ``mode`` nor the metric's name says which is better.
    """

    metric: str | None = None
    mode: Literal["max", "min"] | None = None
    percent: bool = True
    also: list[str] = field(default_factory=lambda: ["val_f1_macro", "val_f1_weighted"])
    beside: list[str] = field(default_factory=list)
    baseline: str | None = None
    every: int = 10
    after: int = 15
    last: int = 1
    targets: list[float] = field(default_factory=list)
    draw: list[str] = field(default_factory=list)
    title: str | None = None
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("after", 0), ("last", 1)):
            require(getattr(self, name) >= least, f"report.{name}", f"at least {least}", getattr(self, name))
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

    def measures(self, on_test: bool = False) -> tuple[list[Measure], list[Measure], list[Measure]]:
        """Return the metrics of the table of final values, those that are shown for each pair of two axes, and those drawn.

        The first are also those on the test set, if the best checkpoints were tested. A metric has no best value if its name
        does not imply a direction.

        Args:
            on_test: whether the server has validated on the test set, so that its figures are called so.
        """
        first, *_ = also = self._with(self.also)
        validated = [own for own in also if own.name.startswith(("val_", "val/"))]
        tested = [replace(own, name=own.name.replace("val", "test", 1), last=1) for own in validated]
        plain = [Measure(name, percent=False, last=self.last, ranked=False) for name in self.beside]
        kinds = [*also, *tested, *plain], [first, *plain], self._with(self.draw)
        final, crossed, drawn = ([replace(own, on_test=on_test) for own in kind] for kind in kinds)
        return final, crossed, drawn

    def _with(self, names: Sequence[str]) -> list[Measure]:
        """Return the metric by which runs are compared, and others, shown alike."""
        known = {name: known_direction(name) for name in names if name != self.measure.name}
        more = [Measure(name, up is not False, self.percent, self.last, ranked=up is not None) for name, up in known.items()]
        return [self.measure, *more]

    def check(self, axis: str, choices: Sequence[str]) -> None:
        """Reject names that the compared axis does not have.

        Raises:
            ConfigurationError: if a name is wrong; the message lists the valid ones.
        """
        for setting, choice in (("baseline", self.baseline), *(("names", name) for name in self.names)):
            if choice is not None and choice not in choices:
                raise ConfigurationError(
                    f"'report.{setting}' has '{choice}', but the choices of the axis '{axis}' are: {', '.join(choices)}. Use "
                    "one of them."
                )
