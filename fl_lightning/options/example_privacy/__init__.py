"""Differential privacy of single training examples."""

from fl_lightning.options.example_privacy.settings import ExamplePrivacy

__all__ = ["ExamplePrivacy"]
