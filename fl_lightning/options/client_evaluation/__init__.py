"""The evaluation of the global model on each client's own test part."""

from fl_lightning.options.client_evaluation.settings import ClientEvaluation

__all__ = ["ClientEvaluation"]
