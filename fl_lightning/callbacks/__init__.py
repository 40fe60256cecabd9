"""Lightning callbacks: the orchestrator, the hooks into its rounds, its progress bar, reports and checkpoints."""

from fl_lightning.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from fl_lightning.callbacks.feature_cache import FeatureCache
from fl_lightning.callbacks.federation_report import FederationReport
from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.callbacks.prediction_images import PredictionImages
from fl_lightning.callbacks.progress import FederationProgressBar
from fl_lightning.callbacks.transfer_learning import TransferLearning

__all__ = [
    "BestCheckpoint",
    "FeatureCache",
    "FederatedOrchestrator",
    "FederationCallback",
    "FederationProgressBar",
    "FederationReport",
    "LastCheckpoint",
    "PredictionImages",
    "TransferLearning",
]
