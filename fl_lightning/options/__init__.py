"""Options of a federation, each in its own file or folder. Only the orchestrator's signature names them."""

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
