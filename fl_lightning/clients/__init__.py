"""Local training at the clients."""

from fl_lightning.clients.attackers import Attackers
from fl_lightning.clients.availability import Availability
from fl_lightning.clients.client_evaluation import ClientEvaluation
from fl_lightning.clients.example_privacy import ExamplePrivacy
from fl_lightning.clients.faults import Faults
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.local_training import LocalTraining
from fl_lightning.clients.partial_work import PartialWork
from fl_lightning.clients.secure_aggregation import SecureAggregation
from fl_lightning.clients.server_evaluation import ServerEvaluation

__all__ = [
    "Attackers",
    "Availability",
    "ClientEvaluation",
    "ExamplePrivacy",
    "Faults",
    "LocalTrainer",
    "LocalTraining",
    "PartialWork",
    "SecureAggregation",
    "ServerEvaluation",
]
