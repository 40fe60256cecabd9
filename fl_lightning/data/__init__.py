"""Provide LightningDataModules, and one that distributes any of them over clients."""

from fl_lightning.data.changes import LabelAveraging
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.hdf5_clients import HDF5Clients
from fl_lightning.data.image_folders import ImageFolderDataModule
from fl_lightning.data.in_memory import ImageDataModule, RandomCropFlip
from fl_lightning.data.opened_clients import LazyClients
from fl_lightning.data.simulated_tasks import SimulatedTasksDataModule
from fl_lightning.data.tables import TableDataModule
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.torchvision_sets import MNISTDataModule, TorchvisionDataModule

__all__ = [
    "FederatedDataModule",
    "HDF5Clients",
    "ImageDataModule",
    "ImageFolderDataModule",
    "LabelAveraging",
    "LazyClients",
    "MNISTDataModule",
    "RandomCropFlip",
    "SimulatedTasksDataModule",
    "TableDataModule",
    "TensorLoader",
    "TorchvisionDataModule",
]
