"""Networks of the papers. Any other ``nn.Module`` works as well."""

from fl_lightning.models.keras_cnn import KerasCNN
from fl_lightning.models.lenet import LeNet

__all__ = ["KerasCNN", "LeNet"]
