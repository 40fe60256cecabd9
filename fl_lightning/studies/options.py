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

    def measures(self, on_test: bool = False) -> list[Measure]:
        """Return all metrics of the table of final values, each also on the test set, if the best checkpoints were tested.

        A metric has no best value if its name does not imply a direction.

        Args:
            on_test: whether the server has validated on the test set, so that its figures are called so.
        """
        first = self._with(self.also)
        validated = [own for own in first if own.name.startswith(("val_", "val/"))]
        tested = [replace(own, name=own.name.replace("val", "test", 1), last=1) for own in validated]
        return [replace(own, on_test=on_test) for own in (*first, *tested, *self._plain)]

    def crossed(self, on_test: bool = False) -> list[Measure]:
        """Return the metrics that are shown for each pair if a study has two axes."""
        return [replace(own, on_test=on_test) for own in (self.measure, *self._plain)]

    def drawn(self, on_test: bool = False) -> list[Measure]:
        """Return the metrics whose curves are drawn."""
        return [replace(own, on_test=on_test) for own in self._with(self.draw)]

    @property
    def _plain(self) -> list[Measure]:
        return [Measure(name, percent=False, last=self.last, ranked=False) for name in self.beside]

    def _with(self, names: Sequence[str]) -> list[Measure]:
        """Return the metric by which runs are compared, and others, shown alike."""
        known = {name: known_direction(name) for name in names if name != self.measure.name}
        more = [Measure(name, up is not False, self.percent, self.last, ranked=up is not None) for name, up in known.items()]
        return [self.measure, *more]

    def panels(self, table: RunTable) -> list[Panel]:
        """Return the settings of a table that are compared, with their names for readers."""
        return panels(table, self.names, self.baseline)

    def check(self, axis: str, choices: Sequence[str]) -> None:
        """Reject names that the compared axis does not have.

        Raises:
            ConfigurationError: if a name is wrong; the message lists the valid ones.
        """
        named = {"baseline": [self.baseline] if self.baseline is not None else [], "names": list(self.names)}
        for setting, choice in ((setting, choice) for setting, given in named.items() for choice in given):
            if choice not in choices:
                raise ConfigurationError(
                    f"'report.{setting}' has '{choice}', but the choices of the axis '{axis}' are: {', '.join(choices)}. Use "
                    "one of them."
                )
