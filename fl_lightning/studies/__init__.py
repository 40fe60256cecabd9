"""Studies: many runs, one table, one report."""

from fl_lightning.studies.report import ReportOptions, write_report
from fl_lightning.studies.run_table import Row, RunTable
from fl_lightning.studies.study import Study

__all__ = ["ReportOptions", "Row", "RunTable", "Study", "write_report"]
