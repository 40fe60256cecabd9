"""What a study's report shows, as a user sets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better, known_direction
from fl_lightning.studies.panels import Measure, Panel, panels
from fl_lightning.studies.set_up import METRIC
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.studies.run_table import RunTable


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
