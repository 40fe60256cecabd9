"""Provide attacks of hostile clients on their data and on their updates."""

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.attacks.labels import LabelAttack, PermutedLabels, RandomLabels, RelabelClass
from fl_lightning.attacks.models import (
    ALIE,
    Crowd,
    GaussianUpdate,
    InnerProductManipulation,
    ModelAttack,
    ScaledUpdate,
    SignFlip,
)

__all__ = [
    "ALIE",
    "Backdoor",
    "Crowd",
    "GaussianUpdate",
    "InnerProductManipulation",
    "LabelAttack",
    "ModelAttack",
    "PermutedLabels",
    "RandomLabels",
    "RelabelClass",
    "ScaledUpdate",
    "SignFlip",
]
