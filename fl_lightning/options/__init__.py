"""Options of a federation, each in a file or folder of its own. Nothing else knows of them but the orchestrator's signature."""

from fl_lightning.options.asynchronous import Asynchronous
from fl_lightning.options.attackers import Attackers
from fl_lightning.options.availability import Availability, Clock
from fl_lightning.options.client_evaluation import ClientEvaluation
from fl_lightning.options.client_privacy import ClientPrivacy
from fl_lightning.options.example_privacy import ExamplePrivacy
from fl_lightning.options.partial_work import PartialWork
from fl_lightning.options.personal import PersonalPart
from fl_lightning.options.secure_aggregation import SecureAggregation

__all__ = [
    "Asynchronous",
    "Attackers",
    "Availability",
    "ClientEvaluation",
    "ClientPrivacy",
    "Clock",
    "ExamplePrivacy",
    "PartialWork",
    "PersonalPart",
    "SecureAggregation",
]
