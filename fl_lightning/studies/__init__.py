"""Studies: many runs, summarised in one table and one report."""

from fl_lightning.studies.options import ReportOptions
from fl_lightning.studies.report import write_report
from fl_lightning.studies.run_table import Row, RunTable
from fl_lightning.studies.study import Study

__all__ = ["ReportOptions", "Row", "RunTable", "Study", "write_report"]
