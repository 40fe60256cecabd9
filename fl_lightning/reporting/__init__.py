"""From updates to loggers."""

from fl_lightning.reporting.rounds import client_metrics, round_metrics
from fl_lightning.reporting.tables import log_matrix
from fl_lightning.reporting.wandb import plot_over_rounds, prefer_offline

__all__ = ["client_metrics", "log_matrix", "plot_over_rounds", "prefer_offline", "round_metrics"]
