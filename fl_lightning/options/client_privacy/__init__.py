"""Differential privacy of whole clients."""

from fl_lightning.options.client_privacy.settings import ClientPrivacy

__all__ = ["ClientPrivacy"]
