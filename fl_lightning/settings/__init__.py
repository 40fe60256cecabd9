"""Settings of a federation: frozen dataclasses that check their values when they are built."""

from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.server_evaluation import ServerEvaluation
from fl_lightning.settings.storage import Checkpoints, Storage

__all__ = [
    "Checkpoints",
    "Faults",
    "LocalTraining",
    "ServerEvaluation",
    "Storage",
]
