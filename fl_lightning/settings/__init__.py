"""Settings of a federation: frozen dataclasses that check their values when they are built."""

from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.server_evaluation import ServerEvaluation

__all__ = [
    "Faults",
    "LocalTraining",
    "ServerEvaluation",
]
