"""LightningDataModules, and the one that spreads any of them over clients."""

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.mnist import MNISTDataModule
from fl_lightning.data.rebalancing import LabelAveraging
from fl_lightning.data.tensor_loader import TensorLoader

__all__ = ["FederatedDataModule", "LabelAveraging", "MNISTDataModule", "TensorLoader"]
