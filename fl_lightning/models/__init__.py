"""Provide the networks of the papers. Any other ``nn.Module`` works as well."""

from fl_lightning.models.density_count import DensityCount
from fl_lightning.models.frozen_backbone import FrozenBackbone
from fl_lightning.models.keras_cnn import KerasCNN
from fl_lightning.models.lenet import LeNet
from fl_lightning.models.mlp import MLP
from fl_lightning.models.resnet import ResNet18
from fl_lightning.models.standardized import Standardized
from fl_lightning.models.unet import UNet
from fl_lightning.models.vgg import VGG19

__all__ = ["MLP", "VGG19", "DensityCount", "FrozenBackbone", "KerasCNN", "LeNet", "ResNet18", "Standardized", "UNet"]
