"""Parts of the model that each client keeps for itself."""

from fl_lightning.options.personal.settings import PersonalPart, PersonalParts

__all__ = ["PersonalPart", "PersonalParts"]
