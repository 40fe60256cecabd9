"""Rules for local training: the client's half of an algorithm."""

from fl_lightning.rules.base import ClientRule, LocalEnd, LocalStart
from fl_lightning.rules.contrast import ModelContrast
from fl_lightning.rules.control_variates import ControlVariates
from fl_lightning.rules.dynamic import DynamicRegularizer
from fl_lightning.rules.mixture import Mixture
from fl_lightning.rules.passes import Batch, LocalModel, Pass
from fl_lightning.rules.phases import Phases
from fl_lightning.rules.proximal import ProximalRule
from fl_lightning.rules.pull import PullRule

__all__ = [
    "Batch",
    "ClientRule",
    "ControlVariates",
    "DynamicRegularizer",
    "LocalEnd",
    "LocalModel",
    "LocalStart",
    "Mixture",
    "ModelContrast",
    "Pass",
    "Phases",
    "ProximalRule",
    "PullRule",
]
