"""Reports on updates, clients and partitions to loggers, files and the terminal."""

from fl_lightning.reporting.matrices import draw_confusion
from fl_lightning.reporting.partition import PartitionSummary, draw_partition
from fl_lightning.reporting.prediction_images import draw_predictions, keep_picture
from fl_lightning.reporting.rounds import client_metrics, round_metrics
from fl_lightning.reporting.tables import log_matrix, log_table, text_table, write_matrix
from fl_lightning.reporting.wandb import FederationWandbLogger, describe_run, prefer_offline

__all__ = [
    "FederationWandbLogger",
    "PartitionSummary",
    "client_metrics",
    "describe_run",
    "draw_confusion",
    "draw_partition",
    "draw_predictions",
    "keep_picture",
    "log_matrix",
    "log_table",
    "prefer_offline",
    "round_metrics",
    "text_table",
    "write_matrix",
]
