"""Declare at a class what a resumed run may change of its arguments."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple


class ResumeRule(NamedTuple):
    """List the arguments of a class that a resumed run must keep or may change; ``*`` stands for all that are not named.

    A class of this package declares it as its attribute ``on_resume``. All other arguments change the result, so a resumed run
    has the same, unless ``federation.checkpoints.resume_changed`` is set.

    Args:
        stays: arguments that must not change, because a checkpoint's state depends on them; separated by spaces.
        free: arguments that change no result, or whose effect is compared directly.
    """

    stays: str = ""
    free: str = ""


def rule_of(kind: type | str, argument: str) -> str | None:
    """Return whether a resumed run may change an argument: 'stays' or 'free'; None if only on purpose.

    Args:
        kind: the class, or its dotted path. Only classes of this package say it by their path.
        argument: the argument of its constructor.
    """
    if isinstance(kind, str):
        module, _, name = kind.rpartition(".")
        kind = getattr(import_module(module), name) if module.startswith("fl_lightning.") else object
    rules: ResumeRule = getattr(kind, "on_resume", ResumeRule())
    named = {name: rule for rule in ("stays", "free") for name in getattr(rules, rule).split()}
    return named.get(argument, named.get("*"))
