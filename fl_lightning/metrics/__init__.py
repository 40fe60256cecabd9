"""Metrics that torchmetrics does not have."""

from fl_lightning.metrics.diagnostic_odds_ratio import DiagnosticOddsRatio

__all__ = ["DiagnosticOddsRatio"]
