"""Provide routes: which clients and server exchange models, and in which order."""

from fl_lightning.routes.base import Cohort, Route
from fl_lightning.routes.fedcyclic import FedCyclic
from fl_lightning.routes.fedstar import FedStar
from fl_lightning.routes.local_only import LocalOnly
from fl_lightning.routes.mediators import Mediators
from fl_lightning.routes.mocha import Mocha
from fl_lightning.routes.periods import PeriodRoute
from fl_lightning.routes.ringfed import RingFed
from fl_lightning.routes.server import ServerRoute
from fl_lightning.routes.warm_start import WarmStart

__all__ = [
    "Cohort",
    "FedCyclic",
    "FedStar",
    "LocalOnly",
    "Mediators",
    "Mocha",
    "PeriodRoute",
    "RingFed",
    "Route",
    "ServerRoute",
    "WarmStart",
]
