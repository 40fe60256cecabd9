"""Local training: one inner Trainer turns the global model and a client's data into a ``ClientUpdate``."""

from fl_lightning.clients.evaluation import ServerEvaluation
from fl_lightning.clients.local_trainer import LocalTrainer, client_copy
from fl_lightning.clients.local_training import LocalTraining, refuse_outer_flags, resolve_precision

__all__ = ["LocalTrainer", "LocalTraining", "ServerEvaluation", "client_copy", "refuse_outer_flags", "resolve_precision"]
