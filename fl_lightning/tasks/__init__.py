"""LightningModules. Any other LightningModule can be federated as well."""

from fl_lightning.tasks.classification import ClassificationTask
from fl_lightning.tasks.kmeans import KMeansTask

__all__ = ["ClassificationTask", "KMeansTask"]
