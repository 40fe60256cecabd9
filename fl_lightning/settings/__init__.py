"""Settings of a federation: frozen dataclasses that check their values when they are built."""

from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.server import Checkpoints, Faults, ServerEvaluation, Storage

__all__ = ["Checkpoints", "Faults", "LocalTraining", "ServerEvaluation", "Storage"]
