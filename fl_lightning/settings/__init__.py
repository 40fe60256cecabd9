"""Settings of a federation: frozen dataclasses that check their values when they are built."""

from fl_lightning.settings.asynchronous import Asynchronous
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.clock import Clock
from fl_lightning.settings.example_privacy import ExamplePrivacy
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.partial_work import PartialWork
from fl_lightning.settings.server_evaluation import ServerEvaluation

__all__ = [
    "Asynchronous",
    "Availability",
    "Clock",
    "ExamplePrivacy",
    "Faults",
    "LocalTraining",
    "PartialWork",
    "ServerEvaluation",
]
