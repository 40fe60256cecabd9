"""Provide LightningModules. You can also federate any other LightningModule."""

from fl_lightning.tasks.base import SupervisedTask
from fl_lightning.tasks.classification import ClassificationTask
from fl_lightning.tasks.kmeans import KMeansTask
from fl_lightning.tasks.loss_adaptation import LossAdaptation
from fl_lightning.tasks.regression import RegressionTask

__all__ = ["ClassificationTask", "KMeansTask", "LossAdaptation", "RegressionTask", "SupervisedTask"]
