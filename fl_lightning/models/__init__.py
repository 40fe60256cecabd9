"""Networks of the papers. Any other ``nn.Module`` works as well."""

from fl_lightning.models.keras_cnn import KerasCNN

__all__ = ["KerasCNN"]
