"""Provide metrics that torchmetrics lacks."""

from fl_lightning.metrics.calibration_curve import CalibrationCurve
from fl_lightning.metrics.diagnostic_odds_ratio import DiagnosticOddsRatio
from fl_lightning.metrics.percentage_error import PercentageError

__all__ = ["CalibrationCurve", "DiagnosticOddsRatio", "PercentageError"]
