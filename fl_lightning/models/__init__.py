"""Provide the networks of the papers. Any other ``nn.Module`` works as well."""

from fl_lightning.models.counting import DensityCount, UNet
from fl_lightning.models.plain import MLP, KerasCNN, LeNet
from fl_lightning.models.pretrained import VGG19, FrozenBackbone, ResNet18
from fl_lightning.models.standardized import Standardized

__all__ = ["MLP", "VGG19", "DensityCount", "FrozenBackbone", "KerasCNN", "LeNet", "ResNet18", "Standardized", "UNet"]
