"""Lightning callbacks: the orchestrator, the hooks into its rounds, its bar, and checkpoints that are never half there."""

from fl_lightning.callbacks.checkpoint_io import AtomicCheckpointIO
from fl_lightning.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.callbacks.progress import FederationProgressBar

__all__ = [
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "FederatedOrchestrator",
    "FederationCallback",
    "FederationProgressBar",
    "LastCheckpoint",
]
