"""Transfer learning in a federation: parts of the module are frozen, and thawed after some rounds."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.utilities.argument_types import ChecksTypes


class TransferLearning(ChecksTypes, Callback):
    """Freeze parts of the module, such as a pretrained backbone, and thaw them in a later round.

    A frozen part has no gradients and is in evaluation mode: no dropout, and BatchNorm uses its stored statistics. It is not
    trained, sent or averaged, and does not count in ``federation/bytes_down`` and ``bytes_up``; strategies, transforms and
    privacy see only what is trained. Without a federation, in a Trainer of your own, epochs take the place of rounds.

    Any other callback that changes ``requires_grad`` of the module between rounds works in the same way, unless it also changes
    the Trainer's optimizer, which is the server's.

    Args:
        parts: names of submodules, as ``module.named_modules()`` gives them, such as ``network.backbone``.
        thaw_after: round n > ``freeze_after`` from which the parts are trained; None keeps them frozen.
        freeze_after: round n >= 0 from which the parts are frozen; before it they are trained.

    Raises:
        ConfigurationError: for a value outside its range; at the start of ``fit``, if a part does not exist, or if nothing is
            left to train.
    """

    changes_training = True
    """Declares that the callback changes the training, so that a resumed run compares its settings."""
    checked_elsewhere = ("parts",)

    def __init__(self, parts: Sequence[str], thaw_after: int | None = None, freeze_after: int = 0) -> None:
        require(isinstance(parts, list | tuple) and len(parts) > 0, "parts", "a list of names of submodules", parts)
        require(freeze_after >= 0, "freeze_after", "0 or above", freeze_after)
        later = thaw_after is None or thaw_after > freeze_after
        require(later, "thaw_after", f"above 'freeze_after', {freeze_after}, or null", thaw_after)
        self.parts, self.thaw_after, self.freeze_after = list(parts), thaw_after, freeze_after
        self._modes: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # modes of frozen parts, kept across fits

    def is_frozen(self, round_idx: int) -> bool:
        """Return whether the parts are frozen in a round, counted from 0."""
        return round_idx >= self.freeze_after and (self.thaw_after is None or round_idx < self.thaw_after)

    @property
    def changes(self) -> bool:
        """Whether the trained parts change during the run."""
        return self.freeze_after > 0 or self.thaw_after is not None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the parts exist and that something is left to train."""
        chosen = {id(parameter) for part in self._find(pl_module) for parameter in part.parameters()}
        rest = (p.requires_grad for p in pl_module.parameters() if id(p) not in chosen)
        if not any(rest):
            raise ConfigurationError(
                f"TransferLearning freezes every trained parameter of {type(pl_module).__name__}: 'parts' is {self.parts}. "
                "Remove at least one part, such as the head."
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze or thaw, before the round's clients train."""
        frozen = self.is_frozen(trainer.current_epoch)
        for part in self._find(pl_module):
            self._set(part, frozen)

    def _set(self, part: nn.Module, frozen: bool) -> None:
        for inner in part.modules():
            if frozen:
                self._modes.setdefault(inner, inner.training)
            inner.training = not frozen and self._modes.pop(inner, inner.training)
        part.requires_grad_(not frozen)

    def _find(self, module: LightningModule) -> list[nn.Module]:
        known = dict(module.named_modules())
        for name in self.parts:
            if name not in known or not any(True for _ in known[name].parameters()):
                there = [n for n, part in known.items() if n and n.count(".") < 2 and any(True for _ in part.parameters())]
                raise ConfigurationError(
                    f"TransferLearning cannot freeze {name!r}, which is not a part of {type(module).__name__} with parameters. "
                    f"Set 'parts' to some of: {', '.join(there[:20]) or 'none'}."
                )
        return [known[name] for name in self.parts]
