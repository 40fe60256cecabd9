"""Transfer learning in a federation: parts of the module are frozen, and thawed after some rounds."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from fl_lightning.errors import ConfigurationError, require


class TransferLearning(Callback):
    """Freezes parts of the module, such as a pretrained backbone, before a round, and thaws them before another.

    A frozen part has no gradients and is in evaluation mode: no dropout, BatchNorm with its own statistics. It is not
    trained, not sent, not averaged, and does not count in ``federation/bytes_down`` and ``bytes_up``; what strategies,
    transforms and privacy see is what is trained. Without a federation, in a Trainer of your own, rounds are epochs.

    Lightning's own finetuning callbacks, and any other that changes ``requires_grad`` of the module between rounds, work in
    the same way.

    Args:
        parts: names of submodules, as ``module.named_modules()`` gives them, such as ``network.backbone``.
        thaw_after: n >= 1: the parts are frozen for n rounds and trained from then on; None for ever.
        freeze_after: n >= 0: the parts are trained for n rounds before they are frozen.

    Raises:
        ConfigurationError: for a value outside its range, and at the start of ``fit`` for a part that does not exist.
    """

    changes_training = True
    """A resumed run compares its settings."""

    def __init__(self, parts: Sequence[str], thaw_after: int | None = None, freeze_after: int = 0) -> None:
        require(not isinstance(parts, str) and len(parts) > 0, "parts", "a list of names of submodules", parts)
        require(freeze_after >= 0, "freeze_after", "0 or above", freeze_after)
        later = thaw_after is None or thaw_after > freeze_after
        require(later, "thaw_after", f"above 'freeze_after', {freeze_after}, or null", thaw_after)
        self.parts, self.thaw_after, self.freeze_after = list(parts), thaw_after, freeze_after
        self._modes: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # of what is frozen, also over fits

    def is_frozen(self, round_idx: int) -> bool:
        """Whether the parts are frozen in a round, from 0."""
        return round_idx >= self.freeze_after and (self.thaw_after is None or round_idx < self.thaw_after)

    @property
    def changes(self) -> bool:
        """Whether what is trained changes in the course of the run."""
        return self.freeze_after > 0 or self.thaw_after is not None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for the parts, and for something that is left to train."""
        chosen = {id(parameter) for part in self._find(pl_module) for parameter in part.parameters()}
        rest = (p.requires_grad for p in pl_module.parameters() if id(p) not in chosen)
        if not any(rest):
            raise ConfigurationError(
                f"TransferLearning freezes all that {type(pl_module).__name__} trains: 'parts' is {self.parts}. Leave "
                "something out of it, such as the head."
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze or thaw, before the round's clients train."""
        frozen = self.is_frozen(trainer.current_epoch)
        for part in self._find(pl_module):
            self._set(part, frozen)

    def _set(self, part: nn.Module, frozen: bool) -> None:
        if frozen:
            for inner in part.modules():
                self._modes.setdefault(inner, inner.training)
                inner.training = False
        else:
            for inner in part.modules():
                inner.training = self._modes.pop(inner, inner.training)
        part.requires_grad_(not frozen)

    def _find(self, module: LightningModule) -> list[nn.Module]:
        known = dict(module.named_modules())
        for name in self.parts:
            if name not in known or not any(True for _ in known[name].parameters()):
                there = [n for n, part in known.items() if n and n.count(".") < 2 and any(True for _ in part.parameters())]
                raise ConfigurationError(
                    f"TransferLearning freezes {name!r}, which is no part of {type(module).__name__} with parameters. Set "
                    f"'parts' to some of: {', '.join(there[:20]) or 'none'}."
                )
        return [known[name] for name in self.parts]
