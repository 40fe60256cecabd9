"""On several ranks, end all of them at the same point of a run after SIGTERM.

Lightning's handler exchanges a message in the middle of whatever a rank does. Since ranks train different clients, they would
wait for each other forever if only one of them is told to end, or one of them twice.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.compat.signals import note_sigterm, on_sigterm
from fl_lightning.utilities.collectives import Collectives


class Termination:
    """Note SIGTERM on this rank during a fit, and tell the others between rounds; a single rank ends as Lightning does.

    Args:
        trainer: the user's Trainer, before it takes over signals.
        cleanup: an exit stack that gives the signal back to the Trainer.
    """

    def __init__(self, trainer: Trainer, cleanup: ExitStack) -> None:
        self._trainer, self._asked = trainer, False
        if trainer.world_size > 1:
            cleanup.callback(on_sigterm(trainer, self._ask))

    def _ask(self) -> None:
        self._asked = True

    def agree(self, comm: Collectives, raises: bool) -> None:
        """End the run on all ranks if one of them has been told to; every rank must call this at the same points of a round.

        Args:
            comm: the ranks.
            raises: whether to end at once, and not at the next point where a Trainer would.

        Raises:
            SIGTERMException: on every rank, if the run ends at once.
        """
        if comm.size == 1:
            return
        asked = torch.tensor([self._asked], dtype=torch.int64, device=self._trainer.strategy.root_device)
        if comm.elementwise_maximum(asked).item():
            note_sigterm(self._trainer)
            if raises:
                raise SIGTERMException
