"""Settings for what a run holds in memory, in files and in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types
from fl_lightning.utilities.checkpoint_file import require_trusted


@checks_types
@dataclass(frozen=True)
class Storage:
    """Limit the memory and the files of a run.

    Args:
        memory: the GiB that each rank may use for the models of a round, for a strategy such as FedMedian that needs all of
            them at once, and again for the state that clients keep between rounds, such as SCAFFOLD's control variates. The
            rest, and that state of more than 1,000 clients, is in files in ``trainer.default_root_dir``.
        disk: the GiB that files of the state that clients keep between rounds may take; the run ends after the first round in
            which they take more. None for no limit.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    memory: float = 4.0
    disk: float | None = None
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require(self.memory >= 0, "federation.storage.memory", "0 or above, in GiB", self.memory)
        require(self.disk is None or self.disk > 0, "federation.storage.disk", "above 0, in GiB, or null", self.disk)


@checks_types
@dataclass(frozen=True)
class Checkpoints:
    """Configure what checkpoints may contain, and from which ones a run may resume.

    Args:
        trusted_classes: the dotted paths of classes that checkpoints may contain besides tensors and plain values, such as
            classes in your module's hyperparameters. Constructing their objects must be harmless for any arguments.
        resume_changed: whether a resumed run may have settings that differ from its checkpoint, which is otherwise refused.

    Raises:
        ConfigurationError: if a class cannot be imported, or can run any code.
    """

    trusted_classes: list[str] = field(default_factory=list)
    resume_changed: bool = False
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require_trusted(self.trusted_classes)
