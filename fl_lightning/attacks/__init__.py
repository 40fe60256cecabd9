"""What hostile clients do to their labels and to what they send."""

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
