"""Declare at a class what a resumed run may change of its arguments."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import NamedTuple


class Kind(Enum):
    """Enumerate whether a resumed run may change a setting."""

    STAYS = "must stay"
    FREE = "is free"
    ON_PURPOSE = "changes on purpose"


class ResumeRule(NamedTuple):
    """List the arguments of a class by kind, separated by spaces; ``*`` stands for all others.

    A class of this package declares it as its attribute ``on_resume``.

    Args:
        stays: arguments that must not change, because a checkpoint's state depends on them.
        free: arguments that change no result, or whose effect is compared directly.
        on_purpose: arguments that change the result, which needs ``federation.resume_changed``.
    """

    stays: str = ""
    free: str = ""
    on_purpose: str = ""

    def kind_of(self, argument: str) -> Kind | None:
        """Return whether a resumed run may change an argument; None if the rule does not say."""
        listed = {Kind.STAYS: self.stays.split(), Kind.FREE: self.free.split(), Kind.ON_PURPOSE: self.on_purpose.split()}
        named = (kind for kind, arguments in listed.items() if argument in arguments)
        rest = (kind for kind, arguments in listed.items() if "*" in arguments)
        return next(named, None) or next(rest, None)


def kind_of(kind: type | str, argument: str) -> Kind | None:
    """Return whether a resumed run may change an argument of a class; None if the class does not say.

    Args:
        kind: the class, or its dotted path. Only classes of this package say it by their path.
        argument: the argument of its constructor.
    """
    if isinstance(kind, str):
        module, _, name = kind.rpartition(".")
        kind = getattr(import_module(module), name) if module.startswith("fl_lightning.") else object
    rule: ResumeRule | None = getattr(kind, "on_resume", None)
    return None if rule is None else rule.kind_of(argument)
