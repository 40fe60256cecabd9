"""LightningModules. Any other LightningModule can be federated as well."""

from fl_lightning.tasks.classification import ClassificationTask

__all__ = ["ClassificationTask"]
