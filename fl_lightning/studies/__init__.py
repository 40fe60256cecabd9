"""Studies: many runs, summarised in one table and one report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fl_lightning.errors import ConfigurationError

if TYPE_CHECKING:
    from fl_lightning.studies.panels import ReportOptions
    from fl_lightning.studies.report import write_report
    from fl_lightning.studies.run_table import Row, RunTable
    from fl_lightning.studies.study import Study

__all__ = ["ReportOptions", "Row", "RunTable", "Study", "write_report"]


def __getattr__(name: str) -> Any:
    """Import a name on first use: the page of a single run needs none of the packages of the extra ``compare``."""
    if name not in __all__:
        raise AttributeError(f"module 'fl_lightning.studies' has no attribute '{name}'")
    require_packages()
    module = {"ReportOptions": "panels", "write_report": "report", "Study": "study"}.get(name, "run_table")
    return getattr(import_module(f"fl_lightning.studies.{module}"), name)


def require_packages() -> None:
    """Check before any run that the report can be written.

    Raises:
        ConfigurationError: if pandas, scipy or matplotlib is missing.
    """
    try:
        for package in ("matplotlib", "pandas", "scipy.stats"):
            import_module(package)
    except ImportError as error:
        raise ConfigurationError(
            f"A study needs pandas, scipy and matplotlib ({error}). Install them with pip install 'fl_lightning[compare]'."
        ) from error
