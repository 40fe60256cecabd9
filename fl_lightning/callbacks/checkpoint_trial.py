"""Check that a run can be resumed, by writing a checkpoint to memory and reading it back before the first round."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.compat.lightning import checkpoint_of
from fl_lightning.compat.torch import tree_map
from fl_lightning.errors import CheckpointError, ConfigurationError
from fl_lightning.utilities.checkpoints import TRUSTED, can_run_code, read_checkpoint, refusal, trusting, untrusted

_REFUSED_CLASS = re.compile(r"but got <class '([\w.]+)'>")


def try_checkpoint(trainer: Trainer, trusted: Sequence[str]) -> None:
    """Write a checkpoint of this run, without the values of its tensors, and read it back.

    Every rank does the same, as when a checkpoint is saved. Runs that save no checkpoints are skipped.

    Args:
        trainer: the Trainer before its first round.
        trusted: the dotted paths of classes that may be loaded.

    Raises:
        ConfigurationError: if the checkpoint cannot be read back; it names the classes to trust, or the objects to remove.
    """
    savers = trainer.checkpoint_callbacks
    if not savers or trainer.fast_dev_run:  # type: ignore[attr-defined]
        return
    only_weights = all(getattr(saver, "save_weights_only", False) for saver in savers)
    owner, buffer = type(trainer.lightning_module).__name__, io.BytesIO()
    try:
        checkpoint = checkpoint_of(trainer, only_weights)
    except Exception as error:  # from a hook that needs a finished round
        warnings.warn(f"A checkpoint of {owner} could not be tried before the first round: {error!r}.", stacklevel=2)
        return
    try:
        torch.save(tree_map(_without_numbers, checkpoint), buffer)
        missing = _missing(buffer, trusted)
    except Exception as error:
        why = refusal(str(error.__cause__)) if isinstance(error, CheckpointError) else str(error)
        raise ConfigurationError(
            f"A trial before the first round found that checkpoints of {owner} contain objects that cannot be saved and loaded "
            f"again ({why}). Remove the objects; for hyperparameters use self.save_hyperparameters(ignore=[...])."
        ) from error
    if missing:
        raise ConfigurationError(
            f"A trial before the first round found that checkpoints of {owner} contain objects of classes that are not "
            f"trusted, so a resumed run could not load them. Set '{TRUSTED}' to "
            f"[{', '.join([*trusted, *missing])}], or remove the objects; for hyperparameters use "
            "self.save_hyperparameters(ignore=[...])."
        )


def _missing(buffer: io.BytesIO, trusted: Sequence[str]) -> list[str]:
    """Return the additional classes to trust. Loading them here is safe, since this run itself created the objects."""
    with trusting(trusted):
        missing = untrusted(buffer)
    while True:
        if bad := [name for name in missing if can_run_code(name)]:
            raise ConfigurationError(f"they need {', '.join(bad)}, which can run arbitrary code")
        try:
            read_checkpoint(buffer, None, [*trusted, *missing])
            return missing
        except CheckpointError as error:
            found = _REFUSED_CLASS.search(refusal(str(error.__cause__)))
            if found is None or found[1] in [*trusted, *missing]:
                raise
            missing.append(found[1])  # such as a NumPy dtype, which only appears when it is constructed


def _without_numbers(leaf: Any) -> Any:
    """Return an empty tensor in place of a tensor, and any other leaf as it is."""
    return torch.empty(0, dtype=leaf.dtype) if type(leaf) in (Tensor, nn.Parameter) else leaf
